"""The other side of a comparison: a process behind the broker that does nothing with what it gets.

Run as ``python -m bench._peer HOST PORT``. It uses the transport that headgate uses. What is published to `ECHO_TOPIC`
comes back on `BACK_TOPIC`; what is published to `SINK_TOPIC` is thrown away, and an empty message there is answered on
`BACK_TOPIC` with the number and the bytes thrown away since the last one. It prints ``ready`` once it is subscribed,
and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys

from bench._logs import log_to_standard_error
from headgate.transport.mqtt import MqttTransport

ECHO_TOPIC, SINK_TOPIC, BACK_TOPIC = "bench/echo", "bench/sink", "bench/back"


async def serve(host: str, port: int) -> None:
    """Serve until standard input ends."""
    thrown = [0, 0]

    def sink(_: str, payload: bytes) -> None:
        if payload:
            thrown[0] += 1
            thrown[1] += len(payload)
            return
        transport.publish(BACK_TOPIC, f"{thrown[0]} {thrown[1]}".encode())
        thrown[:] = 0, 0

    connected = asyncio.Event()
    async with MqttTransport(host, port, "bench-peer") as transport:
        transport.on_connection(lambda here: connected.set() if here else connected.clear())
        await transport.subscribe(ECHO_TOPIC, lambda _, payload: _ignore(transport.publish(BACK_TOPIC, payload)))
        await transport.subscribe(SINK_TOPIC, sink)
        await connected.wait()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def _ignore(_: bool) -> None:
    """Whoever measures notices what is lost."""


if __name__ == "__main__":
    log_to_standard_error()
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
