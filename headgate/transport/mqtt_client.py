"""The client of aiomqtt, and that of paho below it: all that headgate needs of them beyond their public interfaces.

No other module uses their private parts, so aiomqtt is pinned below 3, and tests check them. What each is for:

* `OutgoingPacket`, `on_arrival`: speed. paho makes tables of properties for each message of MQTT 5: to read one of 1 KB
  took 69 µs, and takes 5. Without them, and with three turns of the loop fewer, a client needs 0.75 of the processor
  time, and a leader 0.83 (docs/decisions/record-latency.md).
* `paho_of`: aiomqtt publishes one message at a time, two turns of the loop later, and starts a task for each that
  arrives, which takes three times as long. So messages go past it.
* `answer_unless_lost`, `report_early_end`, `end_wait_for_answer`, `close_socket`: a loss or a close ends what waits.
  aiomqtt waits for its time-outs, and leaves the socket open without the broker.
* The others: what the broker says and aiomqtt discards, and settings that paho or aiomqtt does not have.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

import aiomqtt  # noqa: TID251 - see headgate.transport.mqtt
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from headgate.transport.mqtt_packets import ArrivedMessage, decode_publish

T = TypeVar("T")

ENDED_EARLY: Final = "the broker closed the connection before it answered"


def paho_of(client: aiomqtt.Client) -> PahoClient:
    return client._client  # noqa: SLF001


class OutgoingPacket:
    """One packet among those that paho writes."""

    def __init__(self, paho: PahoClient, packet: bytes) -> None:
        """Append ``packet`` to what `loop_write` writes.

        It is passed for an acknowledged one, for which paho makes no result when it is written: for others it makes
        29 tables of properties.
        """
        self._state: dict[str, Any] = {
            "command": packet[0],
            "mid": 0,
            "qos": 1,
            "pos": 0,
            "to_process": len(packet),
            "packet": memoryview(packet),
            "info": None,
        }
        paho._out_packet.append(self._state)  # type: ignore[arg-type]  # noqa: SLF001

    def is_published(self) -> bool:
        return not self._state["to_process"]


def _before(client: aiomqtt.Client, event: str, function: Callable[..., None]) -> None:
    """Call ``function`` before the callback that aiomqtt has set for an event of paho."""
    paho = paho_of(client)
    own = getattr(paho, event)
    assert own is not None, "set by aiomqtt"

    def both(*arguments: Any) -> None:
        function(*arguments)
        own(*arguments)

    setattr(paho, event, both)


def ping_after(client: aiomqtt.Client, seconds: int) -> None:
    """Ping earlier than the keepalive that the broker knows. paho has no setting for it."""
    paho = paho_of(client)
    paho._keepalive = min(seconds, paho._keepalive)  # noqa: SLF001 - a broker may ask for less in its answer


def on_acceptance(client: aiomqtt.Client, handler: Callable[[Properties], None]) -> None:
    """Pass what the broker says of itself when it accepts the connection to ``handler``; aiomqtt discards it."""

    def accepted(*arguments: Any) -> None:
        if not arguments[3].is_failure:
            handler(arguments[4])

    _before(client, "on_connect", accepted)


def on_arrival(client: aiomqtt.Client, handler: Callable[[PahoClient, ArrivedMessage], None], *, mqtt5: bool) -> None:
    """Pass each message to ``handler``, which acknowledges it; for paho's own decoding see `mqtt_packets`."""
    paho = paho_of(client)

    def handle_publish() -> MQTTErrorCode:
        packet = paho._in_packet  # noqa: SLF001
        try:
            message = decode_publish(packet["command"], packet["packet"], mqtt5=mqtt5)
        except (ValueError, LookupError):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        handler(paho, message)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    paho._handle_publish = handle_publish  # type: ignore[method-assign]  # noqa: SLF001


def on_answered_message(client: aiomqtt.Client, handler: Callable[[int, ReasonCode], None]) -> None:
    """Pass on what the broker says of each message with QoS 1: its packet id, and the code of MQTT 5."""

    def answered(*arguments: Any) -> None:
        handler(arguments[2], arguments[3])

    _before(client, "on_publish", answered)


def mark_errors_as_retrieved(client: aiomqtt.Client) -> None:
    """Keep asyncio from printing the errors of these futures: nothing awaits them while it subscribes or closes."""
    for future in (client._connected, client._disconnected):  # noqa: SLF001
        future.add_done_callback(lambda done: None if done.cancelled() else done.exception())


def report_early_end(client: aiomqtt.Client) -> None:
    """End the wait for the broker's answer when the connection ends before; aiomqtt would wait for its time-out."""
    _before(client, "on_disconnect", lambda *_: end_wait_for_answer(client, ENDED_EARLY))


def end_wait_for_answer(client: aiomqtt.Client, reason: str) -> None:
    if not client._connected.done():  # noqa: SLF001
        client._connected.set_exception(aiomqtt.MqttError(reason))  # noqa: SLF001


def end_session_at_close(client: aiomqtt.Client) -> None:
    """Let the client's DISCONNECT end its session (MQTT 5). aiomqtt has no parameter for it."""
    properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 0
    paho = paho_of(client)
    paho.disconnect = partial(paho.disconnect, properties=properties)  # type: ignore[method-assign]


def raise_if_lost(client: aiomqtt.Client) -> None:
    """Raise MqttError for a loss before `_connect` returned: aiomqtt forgets it and would report none."""
    if not paho_of(client).is_connected():
        raise aiomqtt.MqttError("the broker closed the connection")


async def answer_unless_lost(client: aiomqtt.Client, request: Coroutine[Any, Any, T]) -> T:
    """Return what ``request`` returns; raises MqttError once the connection is lost. aiomqtt waits for its time-out."""
    answer = asyncio.ensure_future(request)
    either: set[asyncio.Future[Any]] = {answer, client._disconnected}  # noqa: SLF001
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise aiomqtt.MqttError("the broker closed the connection")
        return await answer
    finally:
        answer.cancel()
        await asyncio.wait({answer})


async def wait_until_lost(client: aiomqtt.Client) -> None:
    """Wait for the loss: aiomqtt's iterator ends with MqttError, and yields no messages, see `_new_client`."""
    async for _ in client.messages:
        pass


async def close_socket(client: aiomqtt.Client) -> None:
    """Close the socket on every path, and end what waits for an answer; aiomqtt does neither without the broker."""
    client._disconnected.cancel()  # noqa: SLF001
    paho = paho_of(client)
    if paho.socket() is not None:
        paho._sock_close()  # noqa: SLF001
    # Callbacks that aiomqtt scheduled from the connecting thread run in the next turn, and end in the one after.
    await asyncio.sleep(0)
    misc = client._misc_task  # noqa: SLF001
    if misc is not None:
        misc.cancel()
        await asyncio.wait({misc})
