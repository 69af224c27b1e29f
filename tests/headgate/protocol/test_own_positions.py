"""Only a CHECKPOINT consumer has positions of its own: with another type the leader's would silently apply."""

import msgspec
import pytest

from headgate.protocol import messages as m

REGISTER = {"type": "register", "topic": "orders", "subscription": "billing", "consumer": "b-1", "incarnation": 1}


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
def test_positions_of_another_type_are_invalid(kind: str) -> None:
    body = {**REGISTER, "subscription_type": kind, "positions": [[0, 1]]}
    with pytest.raises(msgspec.ValidationError, match="positions: only for type CHECKPOINT"):
        m.decode_request(
            msgspec.msgpack.encode({"request_id": 1, "client_id": "c", "protocol": m.PROTOCOL_VERSION, "body": body})
        )


def test_positions_arrive_as_pairs() -> None:
    body = m.RegisterConsumer(
        **{name: value for name, value in REGISTER.items() if name != "type"},
        subscription_type="CHECKPOINT",
        positions=[(0, 5), (2, 0)],
    )
    request = m.Request(request_id=1, protocol=m.PROTOCOL_VERSION, client_id="c", body=body)

    assert request == m.decode_request(m.encode(request))
