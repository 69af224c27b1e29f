"""What tests of the client library share."""

import pytest

from tests.support.fakes.scripted_leader import ScriptedCluster


@pytest.fixture
def cluster() -> ScriptedCluster:
    """A broker and a store in memory, for scripted leaders; shard 0 with one segment."""
    return ScriptedCluster()
