"""The process at the other side of the broker, which does nothing with the messages it receives.

``python -m bench.harness.broker_peer HOST PORT`` uses headgate's transport. It returns messages on `ECHO_TOPIC`
to `BACK_TOPIC`, and discards messages on `SINK_TOPIC`; an empty message there is answered on
`BACK_TOPIC` with the number and bytes discarded since the last one. It prints ``ready`` once it is
subscribed, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys

from bench.harness.logs import log_to_standard_error
from headgate.transport.mqtt import MqttTransport

ECHO_TOPIC, SINK_TOPIC, BACK_TOPIC = "bench/echo", "bench/sink", "bench/back"


async def serve(host: str, port: int) -> None:
    """Serve until standard input ends."""
    discarded = [0, 0]

    def sink(_: str, payload: bytes) -> None:
        if payload:
            discarded[0] += 1
            discarded[1] += len(payload)
            return
        transport.publish(BACK_TOPIC, f"{discarded[0]} {discarded[1]}".encode())
        discarded[:] = 0, 0

    connected = asyncio.Event()
    async with MqttTransport(host, port, "bench-peer") as transport:
        transport.on_connection(lambda here: connected.set() if here else connected.clear())
        await transport.subscribe(ECHO_TOPIC, lambda _, payload: _ignore(transport.publish(BACK_TOPIC, payload)))
        await transport.subscribe(SINK_TOPIC, sink)
        await connected.wait()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def _ignore(_: bool) -> None:
    """Ignore whether the message was published: the measuring side notices losses."""


if __name__ == "__main__":
    log_to_standard_error()
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
