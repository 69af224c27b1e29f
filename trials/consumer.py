"""A consumer of a run: records every delivery in a file, then acknowledges it.

Run as ``python -m trials.consumer --config FILE --topic … --subscription … --type … --name … --out FILE``.
Each delivery is one line ``at_ns<TAB>segment<TAB>offset<TAB>key<TAB>counter<TAB>generation``. The line is passed to the
kernel before the acknowledgement, so every acknowledged record is in the file even if this process is killed.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

import click
import msgspec

from headgate import Consumer, SubscriptionType, load_client_config


class _Value(msgspec.Struct):
    counter: int


_VALUE: msgspec.json.Decoder[_Value] = msgspec.json.Decoder(_Value)


def counter_of(value: bytes) -> int:
    return _VALUE.decode(value).counter


async def consume(config: Path, topic: str, subscription: str, kind: SubscriptionType, name: str, out: Path) -> None:
    """Consume until SIGTERM, then close the consumer."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        async with Consumer(
            load_client_config(config), topic=topic, subscription=subscription, type=kind, name=name, start="earliest"
        ) as consumer:
            receiving = asyncio.create_task(
                _receive(consumer, handle, acknowledges=kind != SubscriptionType.CHECKPOINT)
            )
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({receiving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            receiving.cancel()
            # Raise the error of a failed consumer; after a signal the task was cancelled.
            await asyncio.wait({receiving})
            if not receiving.cancelled():
                receiving.result()
    finally:
        os.close(handle)


async def _receive(consumer: Consumer, handle: int, *, acknowledges: bool) -> None:
    async for record in consumer:
        what = record.segment, record.offset, record.key.decode(), counter_of(record.value), record.generation
        os.write(handle, ("\t".join(map(str, (time.monotonic_ns(), *what))) + "\n").encode())
        if acknowledges:
            await consumer.acknowledge(record)


@click.command()
@click.option("--config", type=click.Path(path_type=Path), required=True)
@click.option("--topic", required=True)
@click.option("--subscription", required=True)
@click.option("--type", "kind", type=click.Choice(SubscriptionType, case_sensitive=False), required=True)
@click.option("--name", required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(config: Path, topic: str, subscription: str, kind: SubscriptionType, name: str, out: Path) -> None:
    """Consume TOPIC and record every delivery in a file."""
    asyncio.run(consume(config, topic, subscription, kind, name, out))


if __name__ == "__main__":
    main()
