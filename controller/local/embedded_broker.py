"""Run amqtt as the MQTT broker of `headgate up` on machines without mosquitto.

Usage: ``python -m controller.local.embedded_broker <port>``. It speaks MQTT 3.1.1 on loopback, without authentication.
Suitable for trials only; install mosquitto for anything else. Limits of amqtt:

* Retained messages are lost when it stops. Clients publish theirs again on each connection.
* The queue for a slow reader is unbounded.
* A second connection of a client does not end the first one.
* Messages that wait for a session are lost, so records that MQTT devices publish while no daemon leads are lost.
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
