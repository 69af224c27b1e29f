"""Read a resharded Kinesis stream in parent order, with any number of copies of this program.

It prints each record as one line of JSON.

    python examples/kinesis/consumer.py orders --subscription billing
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

from headgate import load_client_config
from headgate.kinesis import KinesisConsumer, KinesisRecord


async def handle(record: KinesisRecord) -> None:
    """Handle one record. Those of one partition key arrive in order, also across splits and merges."""
    line = {"at_ns": time.monotonic_ns(), "shard": record.shard, "key": record.key.decode()}
    print(json.dumps(line | {"data": record.value.decode()}), flush=True)


async def consume(arguments: argparse.Namespace) -> None:
    """Read until SIGTERM or Ctrl-C."""
    async with KinesisConsumer(
        load_client_config(arguments.config),
        stream=arguments.stream,
        topic=arguments.topic,
        subscription=arguments.subscription,
        name=arguments.name,
    ) as consumer:
        await consumer.run(handle, concurrency=16)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Read a Kinesis stream in parent order.")
    parser.add_argument("stream")
    parser.add_argument("--topic", help="name of the external topic (default: the stream's)")
    parser.add_argument("--subscription", default="billing")
    parser.add_argument("--name", help="name of this copy; a copy of the same name resumes what it held before")
    parser.add_argument("--config", type=Path, help="client configuration (default: as for the headgate command)")
    asyncio.run(consume(parser.parse_args()))
