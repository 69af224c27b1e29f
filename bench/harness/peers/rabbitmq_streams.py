"""RabbitMQ streams. The server answers before the operating system has written their files."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from rstream import ConfirmationStatus, Consumer, ConsumerOffsetSpecification, OffsetType, Producer

from bench.harness.peers.peer import AT_ONCE, start_server
from controller.local.reserved_port import LOOPBACK, ReservedPort

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""Debian's ``rabbitmq-server`` in PATH starts it as another user."""


class PEER:
    """Records have no key. Sends batches, and receives by a callback."""

    async def start(self, stack: AsyncExitStack, folder: Path, streams: Sequence[str]) -> None:
        epmd, amqp, distribution, port = (stack.enter_context(ReservedPort()).number for _ in range(4))
        (folder / "plugins").write_text("[rabbitmq_stream].")
        listeners = f"listeners.tcp.1 = {LOOPBACK}:{amqp}\nstream.listeners.tcp.1 = {LOOPBACK}:{port}\n"
        (folder / "rabbitmq.conf").write_text(listeners)
        environ = {
            "HOME": str(folder),
            "RUNNING_UNDER_SYSTEMD": "1",  # no shell between this process and the server
            "ERL_EPMD_PORT": str(epmd),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
        }
        await start_server(stack, folder, epmd, "epmd", "-port", str(epmd), "-address", LOOPBACK)
        await start_server(stack, folder, port, SERVER, environ=environ)
        self._address = {"host": LOOPBACK, "port": port, "username": "guest", "password": "guest"}
        self._producer = await stack.enter_async_context(Producer(**self._address))
        for stream in streams:
            await self._producer.create_stream(stream)

    async def send(self, stream: str, values: Sequence[bytes]) -> None:
        confirmed = asyncio.Semaphore(0)

        def on_confirmation(status: ConfirmationStatus) -> None:
            assert status.is_confirmed, status
            confirmed.release()

        for first in range(0, len(values), AT_ONCE):
            batch = values[first : first + AT_ONCE]
            await self._producer.send_batch(stream, batch, on_publish_confirm=on_confirmation)
        for _ in values:
            await confirmed.acquire()

    async def receive(self, stream: str, on_records: Callable[[int], None], *, new: bool) -> None:
        async with Consumer(**self._address) as consumer:
            await consumer.subscribe(
                stream,
                lambda *_: on_records(1),
                decoder=lambda data: data,
                offset_specification=ConsumerOffsetSpecification(OffsetType.NEXT if new else OffsetType.FIRST, None),
            )
            await asyncio.Event().wait()
