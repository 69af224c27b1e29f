"""The demo's producer: reads the machine's samples at a steady rate and writes down what was committed.

A process of its own: ``python -m demo.producer --config FILE --topic NAME --rate N --out FILE``. It runs until SIGTERM,
then flushes. Each committed record is one line ``key<TAB>counter``; the last line counts what was sent and how it went.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TextIO

import click

from demo.telemetry import Sample, Telemetry
from headgate import Producer, load_client_config
from headgate.client.producer import Delivery
from headgate.errors import HeadgateError

MAX_OUTSTANDING = 200_000
"""Most deliveries waited for at a time; far above what a failover of the demo piles up."""


class Recorder:
    """Writes down the outcome of every record."""

    def __init__(self, out: TextIO) -> None:
        self.sent = 0
        self.outcomes: Counter[str] = Counter()
        self._out = out
        self._waiting: asyncio.Queue[tuple[Sample, Delivery] | None] = asyncio.Queue(MAX_OUTSTANDING)

    async def add(self, sample: Sample, delivery: Delivery) -> None:
        """Wait for ``delivery`` later."""
        self.sent += 1
        await self._waiting.put((sample, delivery))

    async def run(self) -> None:
        """Write outcomes in the order of sending until `finish`."""
        while (item := await self._waiting.get()) is not None:
            sample, delivery = item
            try:
                await delivery
            except HeadgateError as error:
                self.outcomes[type(error).__name__] += 1
            else:
                self.outcomes["committed"] += 1
                self._out.write(f"{sample.key}\t{sample.counter}\n")

    async def finish(self) -> None:
        """Let `run` end once everything sent so far has its outcome."""
        await self._waiting.put(None)


async def produce(config: Path, topic: str, rate: int, out: Path) -> None:
    """Send ``rate`` records a second until told to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    telemetry = Telemetry()
    with out.open("w", buffering=1 << 16) as file:
        recorder = Recorder(file)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(recorder.run(), name="recorder")
            async with Producer(load_client_config(config), name="demo-telemetry") as producer:
                began = loop.time()
                while not stop.is_set():
                    for sample in telemetry.read():
                        pending = await producer.send(
                            topic,
                            sample.key.encode(),
                            sample.encode(),
                            timestamp_ms=time.time_ns() // 1_000_000,
                        )
                        await recorder.add(sample, pending)
                    ahead = recorder.sent / rate - (loop.time() - began)
                    await asyncio.sleep(max(ahead, 0))
                await producer.flush()
                await recorder.finish()
        summary = " ".join(f"{name}={count}" for name, count in sorted(recorder.outcomes.items()))
        file.write(f"#\tsent={recorder.sent} {summary}\n")


@click.command()
@click.option("--config", type=click.Path(path_type=Path), required=True)
@click.option("--topic", required=True)
@click.option("--rate", type=int, default=2000)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(config: Path, topic: str, rate: int, out: Path) -> None:
    """Send this machine's samples to TOPIC."""
    asyncio.run(produce(config, topic, rate, out))


if __name__ == "__main__":
    main()
