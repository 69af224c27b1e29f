"""The process at the other side of the broker, which sends back what it receives.

``python -m bench.harness.broker_peer HOST PORT`` uses headgate's transport. It returns messages on `ECHO_TOPIC`
to `BACK_TOPIC`. It prints ``ready`` once it is subscribed, and ends with its standard input.
"""

import asyncio
import sys

from bench.harness.logs import log_to_standard_error
from headgate.transport.mqtt import MqttTransport

ECHO_TOPIC, BACK_TOPIC = "bench/echo", "bench/back"


async def serve(host: str, port: int) -> None:
    """Serve until standard input ends."""
    connected = asyncio.Event()
    async with MqttTransport(host, port, "bench-peer") as transport:
        transport.on_connection(lambda here: connected.set() if here else connected.clear())
        await transport.subscribe(ECHO_TOPIC, lambda _, payload: _ignore(transport.publish(BACK_TOPIC, payload)))
        await connected.wait()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def _ignore(_: bool) -> None:
    """Ignore whether the message was published: the measuring side notices losses."""


if __name__ == "__main__":
    log_to_standard_error()
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
