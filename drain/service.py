"""The Spark process: one warm session, which answers over a local socket for as long as it lives.

Any number of daemons may connect. Requests that arrive while a run is under way share the next one, whichever
connection they came by. A JVM that is gone or hangs ends the process with code 1: whoever supervises it (the daemon's
drain.supervisor, or systemd) starts another. SIGTERM cancels the run under way, stops Spark and ends with code 0.

    python -m drain.service --ledger file:///var/lib/headgate/ledger --listen unix:/run/headgate/drain.sock

It prints one line once it answers: ``ready unix:/run/headgate/drain.sock``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from drain.answers import Answers
from drain.chunks import LedgerChunks
from drain.counting import JvmGoneError
from drain.job import BacklogJob
from drain.parent import die_with_parent
from drain.protocol import (
    LINE_LIMIT_BYTES,
    VERSION,
    Address,
    AnyReply,
    AnyRequest,
    Failed,
    Ping,
    Pong,
    decode_request,
    encode_line,
)
from drain.runner import SparkRunner
from drain.session import DEFAULT_MASTER, build_session
from drain.warmup import warm_up
from headgate.errors import ConfigError, HeadgateError

OPEN_REQUESTS: Final = 64
"""Requests of one connection that are worked on at once; the next is read when one is done."""
STOP_SECONDS: Final = 8.0
"""For Spark to stop; then the process ends without it, and the JVM with the process."""


class DrainServer:
    """Reads requests and writes replies; what they say is for drain.answers."""

    def __init__(self, answers: Answers, runner: SparkRunner) -> None:
        self._answers = answers
        self._runner = runner
        self.jvm_gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Is set to the reason when the JVM has been found gone."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        room = asyncio.Semaphore(OPEN_REQUESTS)
        try:
            async with asyncio.TaskGroup() as tasks:
                while line := await reader.readline():
                    await room.acquire()
                    task = tasks.create_task(self._handle(line, writer))
                    task.add_done_callback(lambda _: room.release())
        except* (OSError, ValueError) as errors:
            # The peer is gone, or sent a line beyond the limit: there is nobody to tell.
            print(f"connection ended: {errors.exceptions[0]}", file=sys.stderr)  # noqa: T201
        finally:
            writer.close()

    async def _handle(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            request = decode_request(line)
        except msgspec.DecodeError as error:
            reply: AnyReply = Failed(id=0, error=f"not a request of ours: {error}")
        else:
            reply = await self._reply(request)
        # One write per line, so that lines of several tasks cannot mix.
        writer.write(encode_line(reply))
        await writer.drain()

    async def _reply(self, request: AnyRequest) -> AnyReply:
        if request.version != VERSION:
            return Failed(id=request.id, error=f"you speak version {request.version}, this process {VERSION}")
        try:
            if isinstance(request, Ping):
                await self._runner.ping()
                return Pong(id=request.id, runs=self._answers.runs)
            return await self._answers.reply(request)
        except JvmGoneError as error:
            if not self.jvm_gone.done():
                self.jvm_gone.set_result(str(error))
            return Failed(id=request.id, error=str(error))
        except HeadgateError as error:
            return Failed(id=request.id, error=str(error))


async def serve(arguments: argparse.Namespace, session: SparkSession, stopping: asyncio.Event) -> int:
    """Answer until ``stopping`` is set (0) or the JVM is gone (1)."""
    address = Address.parse(arguments.listen)
    chunks = LedgerChunks(arguments.ledger)
    runner = SparkRunner(session, chunks.spark_base, run_timeout_seconds=arguments.run_timeout_seconds)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(runner.close)
        answers = await stack.enter_async_context(Answers(BacklogJob(chunks, runner.count), chunks))
        server = DrainServer(answers, runner)
        listener = await _listen(server, address)
        stack.callback(_forget, address)
        stack.callback(listener.close)
        port = listener.sockets[0].getsockname()[1] if address.path is None else 0
        bound = address if address.path is not None else Address(host=address.host, port=port)
        print(f"ready {bound}", flush=True)  # noqa: T201 - the readiness line
        stopped: asyncio.Future[object] = asyncio.ensure_future(stopping.wait())
        ends: set[asyncio.Future[Any]] = {stopped, server.jvm_gone, answers.worker}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if answers.worker.done():
            answers.worker.result()  # Only a bug ends it: let it end the process, with its traceback.
        if server.jvm_gone.done():
            print(f"error: {server.jvm_gone.result()}", file=sys.stderr)  # noqa: T201
            return 1
    return 0


async def _listen(server: DrainServer, address: Address) -> asyncio.Server:
    if address.path is None:
        return await asyncio.start_server(server.serve, address.host, address.port, limit=LINE_LIMIT_BYTES)
    with contextlib.suppress(OSError):
        # A socket file outlives the process that made it; only one that answers is in use.
        _, writer = await asyncio.open_unix_connection(address.path)
        writer.close()
        raise ConfigError(f"{address} is in use by another process")
    address.path.parent.mkdir(parents=True, exist_ok=True)
    _forget(address)
    # Whoever may connect may ask what a ledger holds.
    mask = os.umask(0o177)
    try:
        return await asyncio.start_unix_server(server.serve, address.path, limit=LINE_LIMIT_BYTES)
    finally:
        os.umask(mask)


def _forget(address: Address) -> None:
    if address.path is not None:
        address.path.unlink(missing_ok=True)


async def _run(arguments: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    folder: Path = arguments.folder
    session = await asyncio.to_thread(
        build_session,
        master=arguments.master,
        wrapper_folder=folder / "java",
        driver_memory=arguments.driver_memory,
        extra={
            "spark.local.dir": str(folder / "scratch"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    if arguments.master.startswith("local") and not stopping.is_set():
        await asyncio.to_thread(warm_up, session, folder / "warm-up")
    code = 0 if stopping.is_set() else await serve(arguments, session, stopping)
    stop = loop.run_in_executor(None, _stop, session)
    await asyncio.wait({stop}, timeout=STOP_SECONDS)
    return code


def _stop(session: SparkSession) -> None:
    # Systemd, or whoever ended our group, may have reached the JVM before us.
    with contextlib.suppress(OSError, EOFError):
        session.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop. 0: told to stop; 1: the JVM is gone; 2: a setting is wrong."""
    parser = argparse.ArgumentParser(prog="python -m drain.service", description="Answer how far a ledger is drained.")
    parser.add_argument("--ledger", required=True, help="URL of the ledger, e.g. file:///var/lib/headgate/ledger")
    parser.add_argument("--listen", required=True, help="unix:/absolute/path or tcp:127.0.0.1:port (0: any free one)")
    parser.add_argument("--master", default=DEFAULT_MASTER, help="Spark master (default: %(default)s)")
    parser.add_argument("--driver-memory", default="1g", help="heap of the JVM (default: %(default)s)")
    parser.add_argument("--run-timeout-seconds", type=float, default=60.0, help="longest run (default: %(default)s)")
    parser.add_argument("--folder", help="for scratch files (default: a temporary one)")
    parser.add_argument("--parent", type=int, help="process id of the parent to die with")
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    with tempfile.TemporaryDirectory(prefix="headgate-drain-", ignore_cleanup_errors=True) as scratch:
        arguments.folder = Path(arguments.folder or scratch).absolute()
        arguments.folder.mkdir(parents=True, exist_ok=True)
        try:
            return asyncio.run(_run(arguments))
        except (ConfigError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            return 2


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Not sys.exit: it would wait for a thread that may hang in a call to a dead JVM.
    os._exit(code)
