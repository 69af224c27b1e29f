"""A shard whose broker stores the messages of MQTT devices."""

import pytest

from tests.support.worlds.device_environment import Devices


@pytest.fixture
def devices() -> Devices:
    return Devices()
