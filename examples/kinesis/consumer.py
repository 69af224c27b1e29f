"""Read a resharded Kinesis stream in parent order, with any number of copies of this program.

headgate grants shards, and this program reads them. It prints each record as one line of JSON.

    python examples/kinesis/consumer.py FOLDER --topic orders --subscription billing

FOLDER is a stream of stream.py. On AWS, replace `FolderStream` by boto3's ``list_shards``,
``get_shard_iterator`` and ``get_records``, each in ``asyncio.to_thread``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import time
from pathlib import Path

import structlog
from stream import FolderStream

from headgate import Admin, ExternalConsumer, GrantedSegment, RequestRejectedError, load_client_config, read_list_shards

IDLE_SECONDS = 0.2
"""Pause before an open shard without new records is read again. Kinesis allows five reads a second."""


async def consume(arguments: argparse.Namespace) -> None:
    """Read until cancelled."""
    stream = FolderStream(arguments.folder)
    config = load_client_config(arguments.config)

    async def follow_reshards() -> None:
        """Import the stream's present shards. Importing the same listing again changes nothing."""
        listing = read_list_shards(await asyncio.to_thread(stream.list_shards), source=str(arguments.folder))
        try:
            answer = await admin.import_topic(arguments.topic, listing)
        except RequestRejectedError as error:
            # Another copy of this program has imported a newer listing.
            print(f"not imported: {error}", file=sys.stderr)
        else:
            if answer.created:
                print(f"imported {', '.join(answer.created)}", file=sys.stderr)

    async def read(shard: GrantedSegment) -> None:
        """Read one shard from its checkpoint to its end; cancelled when headgate moves it to another reader."""
        print(f"{shard.label} from {shard.checkpoint or 'TRIM_HORIZON'}", file=sys.stderr)
        ended = False
        while not ended:
            records, ended = await asyncio.to_thread(stream.get_records, shard.label, shard.checkpoint)
            for record in records:
                line = {"at_ns": time.monotonic_ns(), "shard": shard.label, "key": record.partition_key}
                print(json.dumps(line | {"data": record.data}), flush=True)
            if records:
                await shard.acknowledge(checkpoint=records[-1].sequence_number)
            elif not ended:
                await asyncio.sleep(IDLE_SECONDS)
        # SHARD_END: the shard was split or merged. Import its children before finishing it. If this
        # program dies in between, the next reader does both again.
        await follow_reshards()
        await shard.finish()

    async with Admin(config) as admin:
        await follow_reshards()
        async with ExternalConsumer(
            config, topic=arguments.topic, subscription=arguments.subscription, name=arguments.name
        ) as consumer:
            await consumer.run(read)


async def run_until_signalled(arguments: argparse.Namespace) -> None:
    """Consume, and shut down cleanly on Ctrl-C or SIGTERM."""
    # Standard output is reserved for records.
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    work = asyncio.ensure_future(consume(arguments))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    await asyncio.wait([work])
    if not work.cancelled():
        work.result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Read a Kinesis stream in parent order.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--subscription", default="billing")
    parser.add_argument("--name", help="name of this copy; a copy of the same name resumes what it held before")
    parser.add_argument("--config", type=Path, help="client configuration (default: as for the headgate command)")
    asyncio.run(run_until_signalled(parser.parse_args()))
