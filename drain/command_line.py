"""What the commands of drain/ have in common: options, the Spark session, and exit code 2."""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from drain.setting_values import DEFAULT_MASTER, VALID_MASTERS, conf_pair
from drain.spark.chunks import MustRestartError
from drain.spark.session import build_session, submitted_session
from headgate.errors import ConfigError, StoreError
from headgate.settings.arguments import require_seconds
from headgate.settings.command_parser import EXIT_WRONG_USAGE, error_line

STOP_SECONDS: Final = 8.0
"""Longest time for stopping Spark. Then the process exits, and the JVM with it."""
EXIT_TERMINATED: Final = 128 + signal.SIGTERM


def seconds(text: str) -> float:
    """Return the duration of an option, 0 to a year. Raises ArgumentTypeError."""
    try:
        return require_seconds("duration", float(text), at_least=0.0)
    except (ValueError, ConfigError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_ledger_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ledger", required=True, help="URL of the ledger, e.g. file:///var/lib/headgate/ledger")
    parser.add_argument("--shard", type=int, action="append", help="only this shard (may be repeated; default: all)")


def add_spark_options(parser: argparse.ArgumentParser, *, default_master: str | None = DEFAULT_MASTER) -> None:
    parser.add_argument("--master", default=default_master, help=f"one of {VALID_MASTERS} (default: {DEFAULT_MASTER})")
    parser.add_argument("--conf", type=conf_pair, action="append", default=[], help="KEY=VALUE for Spark (repeatable)")


@asynccontextmanager
async def spark_session(arguments: argparse.Namespace) -> AsyncIterator[SparkSession]:
    """Yield the session for the parsed Spark options, and stop it at the end.

    Without a master, the session of `spark-submit` is used if there is one. Raises ConfigError.
    """
    session = submitted_session() if arguments.master is None else None
    with tempfile.TemporaryDirectory(prefix="headgate-java-") as folder:
        if session is None:
            session = await asyncio.to_thread(
                build_session,
                master=arguments.master or DEFAULT_MASTER,
                wrapper_folder=Path(folder),
                extra=dict(arguments.conf),
            )
        try:
            yield session
        finally:
            await asyncio.to_thread(session.stop)


def run_command(command: Coroutine[None, None, int], *, as_json: bool = False) -> int:
    """Run ``command`` and return its exit code; 2 if a setting is invalid or a server unreachable.

    SIGTERM stops Spark first, so that no JVM outlives the command. ``as_json``: print an error as JSON.
    """
    try:
        return asyncio.run(_until_terminated(command))
    except (ConfigError, MustRestartError, StoreError) as error:
        print(error_line(str(error), EXIT_WRONG_USAGE, as_json=as_json), file=sys.stderr)  # noqa: T201
        return EXIT_WRONG_USAGE


async def _until_terminated(command: Coroutine[None, None, int]) -> int:
    loop = asyncio.get_running_loop()
    running = loop.create_task(command)

    def terminate() -> None:
        running.cancel()
        # A thread may hang in a call to the JVM, and asyncio would wait for it.
        loop.call_later(STOP_SECONDS, os._exit, EXIT_TERMINATED)

    loop.add_signal_handler(signal.SIGTERM, terminate)
    await asyncio.wait({running})
    return EXIT_TERMINATED if running.cancelled() else running.result()
