"""The demo's producer: sends samples of this machine at a steady rate and records what was committed.

Run as ``python -m demo.producer --config FILE --topic NAME --rate N --out FILE``. It runs until SIGTERM,
then flushes. Each committed record is one line ``key<TAB>counter``. The last line counts sent records and outcomes.
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
"""Maximum number of pending deliveries; far above what accumulates during a failover."""


class Recorder:
    """Writes the outcome of every record to a file."""

    def __init__(self, out: TextIO) -> None:
        self.sent = 0
        self.outcomes: Counter[str] = Counter()
        self._out = out
        self._waiting: asyncio.Queue[tuple[Sample, Delivery] | None] = asyncio.Queue(MAX_OUTSTANDING)

    async def add(self, sample: Sample, delivery: Delivery) -> None:
        """Enqueue ``delivery`` for `run`."""
        self.sent += 1
        await self._waiting.put((sample, delivery))

    async def run(self) -> None:
        """Write outcomes in sending order until `finish`."""
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
        """Let `run` end when all records sent so far have an outcome."""
        await self._waiting.put(None)


async def produce(config: Path, topic: str, rate: int, out: Path) -> None:
    """Send ``rate`` records per second until SIGTERM."""
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
    """Send samples of this machine to TOPIC."""
    asyncio.run(produce(config, topic, rate, out))


if __name__ == "__main__":
    main()
