"""What a broker says it accepts, and how it fails to."""

import socket

import pytest

from headgate.errors import TransportError
from headgate.transport.broker_probe import read_broker_properties
from headgate.transport.port import BrokerProperties
from tests.support.servers.scripted_broker import connack, scripted_broker

pytestmark = pytest.mark.real_time


async def probe(port: int, seconds: float = 60.0) -> BrokerProperties | None:
    return await read_broker_properties("127.0.0.1", port, "probe", timeout_seconds=seconds)


LIMITS = b"\x27\x00\x10\x00\x00" + b"\x24\x00" + b"\x25\x00" + b"\x28\x00"


@pytest.mark.parametrize(
    ("answer", "read"), [(connack(), (None, 2, True, True)), (connack(properties=LIMITS), (2**20, 0, False, False))]
)
async def test_limits_are_read_and_what_is_absent_has_the_default_of_the_standard(answer: bytes, read: tuple) -> None:
    async with scripted_broker(answer) as port:
        found = await probe(port)

    assert (found.maximum_packet_bytes, found.maximum_qos, found.retains, found.wildcards) == read
    assert found.answer_seconds > 0


async def test_a_broker_without_mqtt5_says_nothing() -> None:
    async with scripted_broker(b"\x20\x02\x00\x01", later=b"\x20\x02\x00\x00") as port:
        assert await probe(port) is None


@pytest.mark.parametrize(
    ("answer", "seconds", "message"),
    [
        (connack(0x86), 60, "the broker refuses a client without user name: Bad user name or password"),
        (None, 60, "the broker closed the connection before it answered"),
        (b"", 0.3, r"did not answer within 0.3 s"),
    ],
    ids=["a wrong password", "a broker that ends", "a hung broker"],
)
async def test_a_failure_says_what_the_broker_did(answer: bytes | None, seconds: float, message: str) -> None:
    async with scripted_broker(answer) as port:
        with pytest.raises(TransportError, match=message):
            await probe(port, seconds)


async def test_no_broker_is_named_as_that() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(TransportError, match="Connection refused"):
        await probe(port)
