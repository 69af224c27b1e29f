"""Run amqtt as the MQTT broker of `headgate up` on machines without mosquitto.

Usage: ``python -m controller.local.embedded_broker <configuration file>``. It speaks MQTT 3.1.1 on loopback. Suitable
for trials only; install mosquitto for anything else. Limits of amqtt:

* Retained messages are lost when it stops. Clients publish theirs again on each connection.
* The queue for a slow reader is unbounded.
* A second connection of a client does not end the first one.
* A new connection gets copies of the retained messages that the filters of any client match.
* A client may take over the session of another user that has its client id.
* Messages that wait for a session are lost, so records that MQTT devices publish while no daemon leads are lost.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
from amqtt.broker import Broker

from controller.local.reserved_port import LOOPBACK


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration file (JSON)."""

    port: int
    certificate_file: str | None = None
    """Certificate for TLS; None: without TLS."""
    key_file: str | None = None
    password_file: str | None = None
    """Users (controller.local.broker_access); None: every client may do everything."""
    acl_file: str | None = None

    def for_amqtt(self) -> dict[str, Any]:
        """Return the configuration in amqtt's format."""
        listener: dict[str, Any] = {"type": "tcp", "bind": f"{LOOPBACK}:{self.port}"}
        if self.certificate_file is not None:
            listener |= {"ssl": True, "certfile": self.certificate_file, "keyfile": self.key_file}
        access: dict[str, Any] = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
        if self.password_file is not None:
            files = {"password_file": self.password_file, "acl_file": self.acl_file}
            access = {"controller.local.amqtt_access.AccessPlugin": files}
        return {"listeners": {"default": listener}, "plugins": access}


async def serve(config: BrokerConfig) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    broker = Broker(config.for_amqtt())
    await broker.start()
    await stop.wait()
    await broker.shutdown()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=BrokerConfig)))
