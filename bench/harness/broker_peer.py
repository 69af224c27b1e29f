"""The process at the other side of the broker, which sends back what it receives.

``python -m bench.harness.broker_peer HOST PORT`` uses headgate's transport. It returns messages on `ECHO_TOPIC`
to `BACK_TOPIC`. It is ready once it is subscribed, and obeys no order.
"""

import asyncio
import sys

from headgate.transport.mqtt import MqttTransport
from trials.ordered_process import obey

ECHO_TOPIC, BACK_TOPIC = "bench/echo", "bench/back"


async def serve(host: str, port: int) -> None:
    """Serve until standard input ends."""
    connected = asyncio.Event()
    async with MqttTransport(host, port, "bench-peer") as transport:

        def send_back(_: str, payload: bytes) -> None:
            transport.publish(BACK_TOPIC, payload)  # The measuring side notices losses.

        transport.on_connection(lambda here: connected.set() if here else connected.clear())
        await transport.subscribe(ECHO_TOPIC, send_back)
        await connected.wait()
        await obey({})


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
