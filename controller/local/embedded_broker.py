"""The MQTT broker of `headgate up` where mosquitto is missing: amqtt, in a process of its own.

Run as ``python -m controller.local.embedded_broker <port>``. It speaks MQTT 3.1.1, listens on the loopback only, asks
nobody who he is, and forgets its retained messages when it ends: clients publish theirs again on each connection. It
has no limit on what it queues for a slow reader, and does not end a client's connection when the client connects a
second time. It does not give back what waited for a session: what plain devices publish while nobody leads is lost.
Good for trying things out; for more than that install mosquitto.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from amqtt.broker import Broker


async def serve(port: int) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    await stop.wait()
    await broker.shutdown()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(int(sys.argv[1])))
