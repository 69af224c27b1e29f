"""Run amqtt as the MQTT broker of `headgate up` on machines without mosquitto.

Usage: ``python -m controller.local.embedded_broker <configuration file>``. It speaks MQTT 3.1.1 on loopback. Suitable
for trials only; install mosquitto for anything else. Limits of amqtt:

* Retained messages are lost when it stops. Clients publish theirs again on each connection.
* The queue for a slow reader is unbounded.
* A second connection of a client does not end the first one.
* A new connection gets copies of the retained messages that the filters of any client match.
* A client may take over the session of another user that has its client id.
* It would misread a CONNECT of MQTT 5, and never answer it. `read_any_connect` lets it refuse the version.
* Messages that wait for a session are lost, so records that MQTT devices publish while no daemon leads are lost.
"""

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from amqtt.broker import Broker
from amqtt.mqtt.connect import ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.packet import MQTTFixedHeader

from controller.local.reserved_port import LOOPBACK

MQTT_3_1_1: Final = 4


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
        # An IPv6 address without brackets: amqtt splits at the last colon, and would leave them in.
        listener: dict[str, Any] = {"type": "tcp", "bind": f"{LOOPBACK}:{self.port}"}
        if self.certificate_file is not None:
            listener |= {"ssl": True, "certfile": self.certificate_file, "keyfile": self.key_file}
        access: dict[str, Any] = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
        if self.password_file is not None:
            files = {"password_file": self.password_file, "acl_file": self.acl_file}
            access = {"controller.local.amqtt_access.AccessPlugin": files}
        return {"listeners": {"default": listener}, "plugins": access}


_read_connect = ConnectPayload.from_stream


async def read_any_connect(
    reader: asyncio.StreamReader, fixed_header: MQTTFixedHeader | None, variable_header: ConnectVariableHeader
) -> ConnectPayload:
    """Read what follows the header of a CONNECT; return nothing of another version, which amqtt refuses next."""
    if variable_header.proto_level == MQTT_3_1_1:
        return await _read_connect(reader, fixed_header, variable_header)
    variable_header.flags = 0
    return ConnectPayload(client_id="of another version")


async def serve(config: BrokerConfig) -> None:
    """Serve until SIGTERM."""
    ConnectPayload.from_stream = read_any_connect
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    broker = Broker(config.for_amqtt())
    await broker.start()
    await stop.wait()
    await broker.shutdown()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=BrokerConfig)))
