"""The Spark process: keeps one warm Spark session and serves requests over a local socket.

If the JVM dies or hangs, or another ledger appears at its URL, the process exits with code 1 and its
supervisor restarts it. SIGTERM cancels the current run, stops Spark and exits with code 0.

It prints one line when it is ready: ``ready /run/headgate/drain.sock``. The file of the socket has mode 0600 before it
is listened on, and only connections of trusted users are served (drain.peer). A refusal is printed once a minute.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from pyspark.sql import SparkSession

from drain import protocol
from drain.backlog.counting import count_chunks
from drain.backlog.job import BacklogJob
from drain.command_line import STOP_SECONDS, add_spark_options, seconds
from drain.compaction.job import CompactionJob, add_compaction_options, parsed_settings, wall_clock_ms
from drain.compaction.schedule import CHECK_INTERVAL_SECONDS, CompactionScheduler
from drain.external.count import TableCounter
from drain.external.topics import ExternalTopicCounter
from drain.peer import PeerRefusedError, check_peer, trusted_users
from drain.service.processor_share import share_taker
from drain.service.run_coalescer import RunCoalescer
from drain.service.warmup import warm_up
from drain.setting_values import engine_of, socket_path
from drain.spark.chunks import LedgerChunks, MustRestartError
from drain.spark.engines import ENGINE_ERRORS
from drain.spark.runner import SparkRunner
from drain.spark.session import build_session
from drain.table_mapping import read_tables
from headgate.backoff import ReportLimit
from headgate.errors import ConfigError, HeadgateError, LedgerError, StoreError
from headgate.log.lossy_output import lossy_standard_output, take_lost_lines
from headgate.model.text import UNREADABLE_JSON
from headgate.process.background import cancel_and_wait
from headgate.settings.command_parser import CommandParser, error_line

REPORT_SECONDS: Final = 60.0
OWNER_ONLY: Final = 0o177
"""The bits that the mode of a socket does not get."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class DrainListener:
    """An async context manager: it listens from entry to exit. Connections stay open."""

    def __init__(self, path: Path, serve: Serve) -> None:
        self.path = path
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._reports = ReportLimit(REPORT_SECONDS)

    async def __aenter__(self) -> Self:
        """Listen. Raises ConfigError if another process does, and OSError."""
        self._server = await self._bound()
        await self._server.start_serving()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "not entered"
        self._server.close()
        self.path.unlink(missing_ok=True)

    async def _bound(self) -> asyncio.Server:
        with contextlib.suppress(OSError):
            # A socket file outlives its process: it is in use only if a connection succeeds.
            _, writer = await asyncio.open_unix_connection(self.path)
            writer.close()
            raise ConfigError(f"{self.path} is in use by another process")
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The file must never have another mode, not for a moment. Until it listens, no other task has a turn.
        mask = os.umask(OWNER_ONLY)
        try:
            return await asyncio.start_unix_server(
                self._serve_trusted, self.path, limit=protocol.MAX_LINE_BYTES, start_serving=False
            )
        finally:
            os.umask(mask)

    async def _serve_trusted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            check_peer(writer.get_extra_info("socket"), trusted_users())
        except PeerRefusedError as error:
            writer.close()
            if self._reports.is_due(asyncio.get_running_loop().time()):
                print(f"{self.path}: refused a connection: {error}", file=sys.stderr)  # noqa: T201 - the only log here
        else:
            await self._serve(reader, writer)


class DrainServer:
    """Reads requests and writes replies; drain.service.run_coalescer handles them."""

    def __init__(self, coalescer: RunCoalescer, runner: SparkRunner, chunks: LedgerChunks) -> None:
        self._coalescer = coalescer
        self._runner = runner
        self._chunks = chunks
        self.must_restart: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set to the reason when the JVM is found dead, or another ledger at the URL."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. At MAX_OPEN_REQUESTS, reading pauses until one completes."""
        slots = asyncio.Semaphore(protocol.MAX_OPEN_REQUESTS)
        try:
            async with asyncio.TaskGroup() as tasks:
                while line := await reader.readline():
                    await slots.acquire()
                    tasks.create_task(self._handle(line, writer)).add_done_callback(lambda _: slots.release())
        except* (OSError, ValueError) as errors:
            # The peer is gone, or sent a line beyond the limit: no reply is possible.
            print(f"connection ended: {errors.exceptions[0]}", file=sys.stderr)  # noqa: T201
        finally:
            writer.close()

    async def _handle(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            request = protocol.decode_request(line)
        except UNREADABLE_JSON as error:
            reply: protocol.AnyResponse = protocol.FailureResponse(id=0, error=f"not a valid request: {error}")
        else:
            reply = await self._reply(request)
        # One write per line, so that the lines of concurrent tasks cannot interleave.
        writer.write(protocol.encode_reply(msgspec.structs.replace(reply, lost_log_lines=take_lost_lines())))
        await writer.drain()

    async def _reply(self, request: protocol.AnyRequest) -> protocol.AnyResponse:
        if request.version != protocol.VERSION:
            return protocol.FailureResponse(
                id=request.id,
                error=f"the request has protocol version {request.version}, this process {protocol.VERSION}",
            )
        try:
            if isinstance(request, protocol.Ping):
                await self._runner.ping()
                ledger = await self._ledger() if request.name_ledger else None
                return protocol.Pong(id=request.id, runs=self._coalescer.runs, ledger=ledger)
            return await self._coalescer.reply(request)
        except MustRestartError as error:
            if not self.must_restart.done():
                self.must_restart.set_result(str(error))
            return protocol.FailureResponse(id=request.id, error=str(error))
        except HeadgateError as error:
            return protocol.FailureResponse(id=request.id, error=str(error))

    async def _ledger(self) -> protocol.CountedLedger | None:
        """Return what this process counts; None while the store is unreachable, which is no fault of this process."""
        try:
            return await self._chunks.identify()
        except (LedgerError, StoreError):
            return None


async def serve(arguments: argparse.Namespace, session: SparkSession, stopping: asyncio.Event) -> int:
    """Serve until ``stopping`` is set (returns 0) or it must restart (returns 1)."""
    chunks = LedgerChunks(arguments.ledger)
    runner = SparkRunner(session, name="backlog", run_timeout_seconds=arguments.run_timeout_seconds)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(runner.close)
        counter = TableCounter(runner.run)
        external = ExternalTopicCounter(arguments.tables, counter.count, counter.forget)
        job = BacklogJob(chunks, lambda due: runner.run(lambda session: count_chunks(session, chunks.url, due)))
        take_share = share_taker() if engine_of(arguments.master) == "local" else None
        coalescer = await stack.enter_async_context(RunCoalescer(job, chunks, external=external, take_share=take_share))
        server = DrainServer(coalescer, runner, chunks)
        await stack.enter_async_context(DrainListener(arguments.socket, server.serve))
        print(f"ready {arguments.socket}", flush=True)  # noqa: T201 - the readiness line
        stopped: asyncio.Future[object] = asyncio.ensure_future(stopping.wait())
        compacting = asyncio.create_task(_run_compaction(arguments, session, chunks, coalescer), name="compaction")
        ends: set[asyncio.Future[Any]] = {stopped, server.must_restart, coalescer.worker}
        ends |= {compacting} if arguments.chunks else set()
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await cancel_and_wait(compacting)  # Only a bug ends it, or a JVM that is gone, which is printed.
        stopped.cancel()
        if coalescer.worker.done():
            coalescer.worker.result()  # Only a bug ends it: exit with its traceback.
        if server.must_restart.done():
            print(error_line(str(server.must_restart.result()), 1, as_json=False), file=sys.stderr)  # noqa: T201
    return 0 if stopping.is_set() else 1


async def _run_compaction(
    arguments: argparse.Namespace, session: SparkSession, chunks: LedgerChunks, coalescer: RunCoalescer
) -> None:
    if not arguments.chunks:  # the default: compact nothing
        return
    settings = parsed_settings(arguments)
    compaction_job = CompactionJob(arguments.ledger, session, settings, now_ms=wall_clock_ms)
    schedule = CompactionScheduler(
        compaction_job,
        shards=chunks.shards,
        count=lambda shard: coalescer.reply(protocol.BacklogRequest(shard=shard)),
        results=coalescer.results,
        rng=random.Random(),  # noqa: S311 - jitter
        check_interval_seconds=min(CHECK_INTERVAL_SECONDS, max(1.0, settings.delay_seconds)),
    )
    try:
        await schedule.run()
    finally:
        compaction_job.runner.close()


async def _run(arguments: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    folder: Path = arguments.folder
    _report(f"starting Spark on {arguments.master}")
    session = await asyncio.to_thread(
        build_session,
        master=arguments.master,
        wrapper_folder=folder / "java",
        driver_memory=arguments.driver_memory,
        extra=_spark_folders(folder, arguments.master) | dict(arguments.conf),
    )
    _report("Spark has started")
    if engine_of(arguments.master) == "local" and not stopping.is_set():
        await asyncio.to_thread(warm_up, session, _report)
    code = 0 if stopping.is_set() else await serve(arguments, session, stopping)
    await asyncio.wait({loop.run_in_executor(None, _stop, session)}, timeout=STOP_SECONDS)
    return code


def _report(step: str) -> None:
    """Print a step of the start. The supervisor allows more time for a start that proceeds."""
    print(step, file=sys.stderr)  # noqa: T201 - this process has no other log


def _spark_folders(folder: Path, master: str) -> dict[str, str]:
    """Return settings that keep Spark's files in ``folder``. A Connect server has its own."""
    if engine_of(master) == "connect":
        return {}
    return {"spark.local.dir": str(folder / "scratch"), "spark.sql.warehouse.dir": str(folder / "warehouse")}


def _stop(session: SparkSession) -> None:
    # The JVM may have received the signal too (systemd signals the whole group), and a Connect server may be gone.
    with contextlib.suppress(*ENGINE_ERRORS):
        session.stop()


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line; exits if it is invalid."""
    parser = CommandParser(
        "headgate drain serve",
        "Count the backlog of a ledger when daemons ask.",
        "--ledger file:///var/lib/headgate/ledger --listen /run/headgate/drain.sock",
    )
    parser.add_argument("--ledger", required=True, help="URL of the ledger, e.g. file:///var/lib/headgate/ledger")
    parser.add_argument("--listen", required=True, help="path of the Unix socket on which daemons ask")
    add_spark_options(parser)
    parser.add_argument("--driver-memory", default="1g", help="heap size of the JVM (default: %(default)s)")
    parser.add_argument(
        "--run-timeout-seconds", type=seconds, default=60.0, help="time limit of one run (default: %(default)s)"
    )
    add_compaction_options(parser, "compaction-", default_chunks=0)
    parser.add_argument(
        "--external", type=Path, help="TOML file whose section external maps the tables of external topics"
    )
    parser.add_argument("--folder", help="folder for scratch files (default: a temporary one)")
    return parser.parse_args(argv)


def _socket(listen: str) -> Path:
    try:
        return socket_path(listen)
    except ConfigError as error:
        raise ConfigError(f"--listen: {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal. 0: stopped by a signal; 1: it must restart; 2: invalid setting."""
    arguments = parsed(argv)
    with (
        lossy_standard_output(),
        tempfile.TemporaryDirectory(prefix="headgate-drain-", ignore_cleanup_errors=True) as scratch,
    ):
        arguments.folder = Path(arguments.folder or scratch).absolute()
        arguments.folder.mkdir(parents=True, exist_ok=True)
        try:
            arguments.socket = _socket(arguments.listen)
            arguments.tables = read_tables(arguments.external) if arguments.external else {}
            return asyncio.run(_run(arguments))
        except (ConfigError, OSError) as error:
            print(error_line(str(error), 2, as_json=False), file=sys.stderr)  # noqa: T201
            return 2
