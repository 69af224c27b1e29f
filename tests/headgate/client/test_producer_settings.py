"""Invalid settings of a producer are refused when they are made."""

import math

import pytest

from headgate.client.producing.producer_settings import ProducerSettings
from headgate.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (
            {"delivery_timeout_seconds": 3, "request_timeout_seconds": 3, "linger_seconds": 0.1},
            "delivery_timeout_seconds=3 .*linger_seconds=0.1 .*request_timeout_seconds=3",
        ),
        ({"guaranteed_bytes": 2000, "buffer_bytes": 1000}, "guaranteed_bytes=2000 .*buffer_bytes=1000"),
        ({"batch_bytes": 3_000_000}, "batch_bytes=3000000"),
        ({"max_record_bytes": 2_000_000}, "max_record_bytes=2000000"),
        ({"max_in_flight": 0}, "max_in_flight=0"),
        ({"buffer_bytes": math.nan}, "buffer_bytes=nan has to be an integer"),
        ({"batch_bytes": "1"}, "batch_bytes=.1. has to be an integer"),
        ({"linger_seconds": -1}, "linger_seconds=-1"),
        ({"linger_seconds": math.nan}, "linger_seconds=nan: use 0 to 31536000"),
        ({"request_timeout_seconds": math.nan}, "request_timeout_seconds=nan: use"),
        ({"delivery_timeout_seconds": math.inf}, "delivery_timeout_seconds=inf: use 0.001 to 31536000 seconds"),
        ({"request_timeout_seconds": 1e-320}, "request_timeout_seconds=.* use 0.001 to"),
        ({"when_full": "drop"}, "when_full='drop'"),
    ],
)
def test_invalid_settings_are_refused_with_their_values(settings, names):
    with pytest.raises(ConfigError, match=names):
        ProducerSettings(**settings)
