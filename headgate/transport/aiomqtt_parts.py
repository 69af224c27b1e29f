"""What the transports need of aiomqtt beyond its interface.

The parts are private, so aiomqtt is pinned below 3, and tests check them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import aiomqtt  # noqa: TID251 - see headgate.transport.mqtt
from paho.mqtt.client import Client as PahoClient

T = TypeVar("T")

ENDED_EARLY: Final = "the broker closed the connection before it answered"


def cause_of(error: Exception) -> BaseException:
    """Return the error of the socket behind ``error``; aiomqtt raises its own "from None"."""
    context = error.__context__
    return error.__cause__ or (context if isinstance(context, OSError) else None) or error


def paho_of(client: aiomqtt.Client) -> PahoClient:
    """Return aiomqtt's paho client."""
    return client._client  # noqa: SLF001


def ping_after(client: aiomqtt.Client, seconds: int) -> None:
    """Ping earlier than the keepalive that the broker knows. paho has no setting for it."""
    paho_of(client)._keepalive = seconds  # noqa: SLF001


def mark_errors_as_retrieved(client: aiomqtt.Client) -> None:
    """Keep asyncio from printing the errors of these futures: nothing awaits them while it subscribes or closes."""
    for future in (client._connected, client._disconnected):  # noqa: SLF001
        future.add_done_callback(lambda done: None if done.cancelled() else done.exception())


def report_early_end(client: aiomqtt.Client) -> None:
    """End the wait for the broker's answer when the connection ends before; aiomqtt would wait for its time-out."""
    paho = paho_of(client)
    on_disconnect = paho.on_disconnect
    assert on_disconnect is not None, "set by aiomqtt"

    def on_end(*arguments: Any) -> None:
        if not client._connected.done():  # noqa: SLF001
            client._connected.set_exception(aiomqtt.MqttError(ENDED_EARLY))  # noqa: SLF001
        on_disconnect(*arguments)

    paho.on_disconnect = on_end


def end_wait_for_answer(client: aiomqtt.Client) -> None:
    """End the wait for the broker's answer: the connection is not wanted any more."""
    if not client._connected.done():  # noqa: SLF001
        client._connected.set_exception(aiomqtt.MqttError("the connection is not wanted any more"))  # noqa: SLF001


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
            raise_if_lost(client)
        return await answer
    finally:
        answer.cancel()
        await asyncio.wait({answer})


async def wait_until_lost(client: aiomqtt.Client) -> None:
    """Wait for the loss: aiomqtt's iterator ends with MqttError, and yields no messages, see `_new_client`."""
    async for _ in client.messages:
        pass


async def close_socket(client: aiomqtt.Client) -> None:
    """Close the socket on every path; aiomqtt leaves it open when the broker does not answer."""
    paho = paho_of(client)
    if paho.socket() is not None:
        paho._sock_close()  # noqa: SLF001
    # Callbacks that aiomqtt scheduled from the connecting thread run in the next turn, and end in the one after.
    await asyncio.sleep(0)
    misc = client._misc_task  # noqa: SLF001
    if misc is not None:
        misc.cancel()
        await asyncio.wait({misc})
