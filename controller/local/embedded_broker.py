"""Run amqtt as the MQTT broker of `headgate up` on machines without mosquitto.

Usage: ``python -m controller.local.embedded_broker <configuration of amqtt, as JSON>``. It speaks MQTT 3.1.1 on
loopback. Suitable for trials only; install mosquitto for anything else. Limits of amqtt:

* Retained messages are lost when it stops. Clients publish theirs again on each connection.
* The queue for a slow reader is unbounded.
* A second connection of a client does not end the first one.
* A new connection gets copies of the retained messages that the filters of any client match.
* A client may take over the session of another user that has its client id.
* It would misread a CONNECT of MQTT 5, and never answer it. `read_any_connect` lets it refuse the version.
* Messages that wait for a session are lost, so records that MQTT devices publish while no daemon leads are lost.
"""

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any, Final

from amqtt.broker import Broker
from amqtt.mqtt.connect import ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.packet import MQTTFixedHeader

MQTT_3_1_1: Final = 4


_read_connect = ConnectPayload.from_stream


async def read_any_connect(
    reader: asyncio.StreamReader, fixed_header: MQTTFixedHeader | None, variable_header: ConnectVariableHeader
) -> ConnectPayload:
    """Read what follows the header of a CONNECT; return nothing of another version, which amqtt refuses next."""
    if variable_header.proto_level == MQTT_3_1_1:
        return await _read_connect(reader, fixed_header, variable_header)
    variable_header.flags = 0
    return ConnectPayload(client_id="of another version")


async def serve(config: dict[str, Any]) -> None:
    ConnectPayload.from_stream = read_any_connect
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    broker = Broker(config)
    await broker.start()
    await stop.wait()
    await broker.shutdown()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_bytes())))
