"""An MQTT client that sends any message, with valid credentials or without. No rule of a client library applies.

It speaks MQTT 5, in which a broker says that it refuses a message. It never reconnects.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, Self

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from headgate.settings.config import ClientConfig

ANSWER_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 20.0


class RawClient:
    """One connection. `connect`, `publish` and `subscribe` return the broker's reason, such as "Not authorized"."""

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        user: str | None = None,
        password: str | None = None,
        clean: bool = True,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """``context`` None: no TLS."""
        self.client_id = client_id
        self.received: list[tuple[str, bytes]] = []
        """(topic, payload) of all messages so far."""
        self.disconnected = asyncio.Event()
        self._on_message: Callable[[str, bytes], None] = lambda *_: None
        self._address = host, port
        self._clean = clean
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[str] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._paho = Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTv5, reconnect_on_failure=False, manual_ack=False
        )
        self._paho.connect_timeout = CONNECT_SECONDS
        if user is not None:
            self._paho.username_pw_set(user, password)
        if context is not None:
            self._paho.tls_set_context(context)
        self._paho.on_connect = self._post(lambda _c, _u, _f, reason, _p: self._set_connected(str(reason)))
        self._paho.on_publish = self._post(lambda _c, _u, mid, reason, _p: self._answer(mid, [reason]))
        self._paho.on_subscribe = self._post(lambda _c, _u, mid, reasons, _p: self._answer(mid, reasons))
        self._paho.on_message = self._post(lambda _c, _u, message: self._receive(message))
        self._paho.on_disconnect = self._post(lambda *_: self._set_disconnected())

    @classmethod
    def from_config(
        cls, config: ClientConfig, client_id: str, *, password: str | None = None, clean: bool = True
    ) -> Self:
        """Return a connection of the user of ``config``, not yet open. ``password``: another one than the user's."""
        tls = config.broker_tls()
        return cls(
            config.broker_host,
            config.broker_port,
            client_id,
            user=config.username,
            password=password or config.password(),
            clean=clean,
            context=None if tls is None else tls.context(),
        )

    async def connect(self) -> str:
        """Connect. Raises OSError (ssl.SSLError among them) if there is no MQTT connection."""
        await asyncio.to_thread(self._paho.connect, *self._address, keepalive=60, clean_start=self._clean)
        self._paho.loop_start()
        async with asyncio.timeout(ANSWER_SECONDS):
            return await asyncio.shield(self._connected)

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> str:
        """Publish at QoS 1. When the broker has answered, it has passed the message on to its readers."""
        info = self._paho.publish(topic, payload, qos=1, retain=retain)
        return await self._answer_to(info.mid)

    def publish_unconfirmed(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 0."""
        self._paho.publish(topic, payload)

    async def subscribe(self, topic_filter: str, on_message: Callable[[str, bytes], None] = lambda *_: None) -> str:
        """Subscribe at QoS 1. ``on_message`` gets all messages of this connection, from now on."""
        self._on_message = on_message
        _, mid = self._paho.subscribe(topic_filter, qos=1)
        assert mid is not None, "a filter was given"
        return await self._answer_to(mid)

    async def close(self) -> None:
        self._paho.disconnect()
        await asyncio.to_thread(self._paho.loop_stop)

    async def __aenter__(self) -> Self:
        reason = await self.connect()
        assert reason == "Success", f"{self.client_id}: {reason}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _post(self, handle: Callable[..., None]) -> Callable[..., None]:
        """Return a callback for paho's thread that calls ``handle`` on the loop."""
        return lambda *arguments: (self._loop.call_soon_threadsafe(handle, *arguments), None)[1]

    def _set_connected(self, reason: str) -> None:
        if not self._connected.done():
            self._connected.set_result(reason)

    def _set_disconnected(self) -> None:
        self.disconnected.set()
        for waiting in (self._connected, *self._answers.values()):
            if not waiting.done():
                waiting.set_exception(ConnectionError("the broker closed the connection"))
                waiting.exception()  # retrieved here, because a task that waits for it may have ended
        self._answers.clear()

    def _receive(self, message: MQTTMessage) -> None:
        self.received.append((message.topic, bytes(message.payload)))
        self._on_message(message.topic, bytes(message.payload))

    async def _answer_to(self, mid: int) -> str:
        if self.disconnected.is_set():
            raise ConnectionError("the broker closed the connection")
        # The answer may have been posted already, but not handled: both happen on the loop.
        answer = self._answers.setdefault(mid, self._loop.create_future())
        async with asyncio.timeout(ANSWER_SECONDS):
            return await answer

    def _answer(self, mid: int, reasons: list[ReasonCode] | Any) -> None:
        answer = self._answers.pop(mid, None)
        if answer is not None and not answer.done():
            answer.set_result(", ".join(str(reason) for reason in reasons))
