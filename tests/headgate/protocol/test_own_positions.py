"""Only a CHECKPOINT consumer has positions of its own: with another type the leader's would silently apply."""

import msgspec
import pytest

from headgate.protocol import codec
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import RegisterConsumer, Request

REGISTER = {"type": "register", "topic": "orders", "subscription": "billing", "consumer": "b-1", "incarnation": 1}


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
def test_positions_of_another_type_are_invalid(kind: str) -> None:
    body = {**REGISTER, "subscription_type": kind, "positions": [[0, 1]]}
    with pytest.raises(msgspec.ValidationError, match="positions: only for type CHECKPOINT"):
        codec.decode_request(
            msgspec.msgpack.encode({"request_id": 1, "client_id": "c", "protocol": PROTOCOL_VERSION, "body": body})
        )


def test_positions_arrive_as_pairs() -> None:
    body = RegisterConsumer(
        **{name: value for name, value in REGISTER.items() if name != "type"},
        subscription_type="CHECKPOINT",
        positions=[(0, 5), (2, 0)],
    )
    request = Request(request_id=1, protocol=PROTOCOL_VERSION, client_id="c", body=body)

    assert request == codec.decode_request(codec.encode(request))
