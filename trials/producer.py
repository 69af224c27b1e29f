"""A producer of a run: sends records at a steady rate, and records the outcome of each in a file.

Run as ``python -m trials.producer --config FILE --topic NAME --rate N --out FILE``. It runs until SIGTERM, then
flushes. It keeps its rate while nothing is acknowledged, so a latency includes what an outage delays. One line for each
record: ``sent_ns<TAB>done_ns<TAB>outcome<TAB>key<TAB>counter``. Keys take turns, and the counter of a key rises by one
with each record.
"""

import asyncio
import signal
import time
from pathlib import Path
from typing import Final, TextIO

import click
import msgspec

from headgate import Producer, load_client_config
from headgate.client.producer import Delivery
from headgate.errors import DeliveryFailedError, DeliveryUnknownError, HeadgateError

MAX_OUTSTANDING: Final = 200_000
"""Deliveries that wait for their outcome: several minutes of the highest sensible rate."""
INTERVAL_SECONDS: Final = 0.1
"""Between two bursts: the resolution of outages, and far fewer chunks than records."""
KEYS: Final = 64
CONNECT_SECONDS: Final = 120.0


async def record_outcomes(waiting: asyncio.Queue[tuple[str, int, int, Delivery] | None], out: TextIO) -> None:
    """Write the outcome of each delivery, in the order of sending, until None."""
    while (item := await waiting.get()) is not None:
        key, counter, sent_ns, delivery = item
        outcome = await outcome_of(delivery)
        out.write(f"{sent_ns}\t{time.monotonic_ns()}\t{outcome}\t{key}\t{counter}\n")


async def outcome_of(delivery: Delivery) -> str:
    try:
        await delivery
    except DeliveryFailedError:
        return "failed"
    except DeliveryUnknownError:
        return "unknown"
    except HeadgateError:
        return "rejected"
    return "committed"


async def produce(config: Path, topic: str, rate: int, out: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    waiting: asyncio.Queue[tuple[str, int, int, Delivery] | None] = asyncio.Queue(MAX_OUTSTANDING)
    with out.open("w", buffering=1) as file:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(record_outcomes(waiting, file), name="record-outcomes")
            async with Producer(
                load_client_config(config), name=f"trial-{topic}", connect_timeout_seconds=CONNECT_SECONDS
            ) as producer:
                began, sent = loop.time(), 0
                while not stop.is_set():
                    while sent < rate * (loop.time() - began):
                        key, counter = f"key-{sent % KEYS}", sent // KEYS
                        value = msgspec.json.encode({"counter": counter})
                        sent_ns = time.monotonic_ns()
                        await waiting.put((key, counter, sent_ns, await producer.send(topic, key.encode(), value)))
                        sent += 1
                    await asyncio.sleep(INTERVAL_SECONDS)
                await producer.flush()
                await waiting.put(None)


@click.command()
@click.option("--config", type=click.Path(path_type=Path), required=True)
@click.option("--topic", required=True)
@click.option("--rate", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Records per second.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File for the outcomes.")
def main(config: Path, topic: str, rate: int, out: Path) -> None:
    """Send records to TOPIC, and record the outcome of each."""
    asyncio.run(produce(config, topic, rate, out))


if __name__ == "__main__":
    main()
