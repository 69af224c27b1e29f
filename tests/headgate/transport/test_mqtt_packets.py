"""Messages are decoded as paho decodes them."""

from typing import Any
from unittest.mock import Mock, call

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt import _packet
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from headgate.transport.mqtt_packets import CONTENT_TYPE, MESSAGE_BYTES, ReadingWindow, decode_publish, encode_publish


def packet(
    topic: str, payload: bytes, qos: int, response: Any, headers: list[tuple[str, str]], *, mqtt5: bool
) -> bytes:
    """Return what follows the fixed header. A header ``content-type`` is the content type, if it is the first one."""
    properties = Properties(PacketTypes.PUBLISH)
    if headers and headers[0][0] == CONTENT_TYPE:
        properties.ContentType = headers[0][1]
    if named := headers["ContentType" in vars(properties) :]:
        properties.UserProperty = named
    if response is not None:
        properties.ResponseTopic, properties.CorrelationData = response
    name = topic.encode()
    number = b"\x12\x34" if qos else b""
    return len(name).to_bytes(2, "big") + name + number + (properties.pack() if mqtt5 else b"") + payload


@given(
    topic=st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=300),
    payload=st.binary(max_size=300),
    qos=st.sampled_from([0, 1]),
    retained=st.booleans(),
    mqtt5=st.booleans(),
    response=st.none() | st.tuples(st.just("replies/1"), st.binary(max_size=300)),
    headers=st.lists(st.tuples(st.sampled_from([CONTENT_TYPE, "a", "é"]), st.sampled_from(["", "x", "ä"])), max_size=4),
)
def test_a_message_is_what_paho_reads(topic, payload, qos, retained, mqtt5, response, headers):
    body = packet(topic, payload, qos, response, headers, mqtt5=mqtt5)
    command = 0x30 | qos << 1 | retained
    version = MQTTProtocolVersion.MQTTv5 if mqtt5 else MQTTProtocolVersion.MQTTv311
    expected = _packet.decode_publish(command, body, version)

    found = decode_publish(command, bytearray(body), mqtt5=mqtt5)

    wanted = expected.topic, expected.payload, expected.qos, expected.retain, expected.mid
    assert wanted == (found.topic.encode(), found.payload, found.qos, found.retained, found.number)
    assert found.response_topic == getattr(expected.properties, "ResponseTopic", None)
    assert found.correlation_data == getattr(expected.properties, "CorrelationData", None)
    assert found.headers == (tuple((name, text.encode()) for name, text in headers) if mqtt5 else ())


@pytest.mark.parametrize("mqtt5", [True, False])
@pytest.mark.parametrize("size_bytes", [0, *(2**bits + more for bits in (7, 14, 21) for more in (-6, -5, -4))])
def test_an_encoded_message_is_what_paho_writes(size_bytes: int, mqtt5: bool) -> None:
    """At these lengths the fixed header gets another byte."""
    paho = PahoClient(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion(5 if mqtt5 else 4))
    paho._sock = object()
    paho.on_socket_register_write = lambda *_: None
    paho.publish("é", payload := b"x" * size_bytes)
    paho._sock = None

    assert paho._out_packet[0]["packet"] == encode_publish("é", payload, mqtt5=mqtt5)


def test_a_text_has_any_character_that_mqtt_allows() -> None:
    """paho refuses U+FEFF: such a message would end the connection, and with a session again at each delivery."""
    found = decode_publish(
        0x30, packet("t", b"v", 0, ("r\ufeff", b"\xff"), [("a\ufeff", "\ufeff")], mqtt5=True), mqtt5=True
    )

    assert (found.response_topic, found.correlation_data, found.payload) == ("r\ufeff", b"\xff", b"v")
    assert found.headers == (("a\ufeff", "\ufeff".encode()),)


@pytest.mark.parametrize(
    "body", [b"", b"\x00", b"\x00\x01t", b"\x00\x01\xff\x00", b"\x00\x01t\x05\x63", b"\x00\x01t\x04\x03\x00\x09x"]
)
def test_a_malformed_packet_is_an_error(body: bytes) -> None:
    with pytest.raises((ValueError, IndexError, KeyError)):
        decode_publish(0x30, body, mqtt5=True)


# Sessions stop and continue reading together.


def test_all_readers_pause_above_the_limit_and_continue_at_half_of_it() -> None:
    window, reader, other = ReadingWindow(4 * (MESSAGE_BYTES + 10)), Mock(), Mock()
    window.readers |= {reader, other}
    for _ in range(4):
        window.take(10)
    assert ([], False) == (reader.mock_calls, window.full)

    window.take(10)
    window.give_back(10)
    window.give_back(10)
    assert ([call.pause_reading()], True) == (reader.mock_calls, window.full)
    window.give_back(10)
    window.give_back(10)
    assert ([call.pause_reading(), call.resume_reading()], False) == (reader.mock_calls, window.full)
    assert reader.mock_calls == other.mock_calls
