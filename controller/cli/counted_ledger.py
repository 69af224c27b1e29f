"""Finds out for `headgate doctor` which ledger Spark counts for a daemon: what its process, or a result, says."""

from pathlib import Path
from typing import Final

from controller.settings.load import Settings
from drain.backlog.results import newest_result
from drain.checker.connection import Connection
from drain.protocol import CountedLedger, DrainCheckError, Ping, Pong, wrong_ledger
from headgate.cli.cluster.finding import Finding, ok, problem, warning
from headgate.errors import HeadgateError
from headgate.ledger.identity import read_ledger_id
from headgate.storage.object_store import open_store

CHECK: Final = "counted ledger"


async def counted_ledger(settings: Settings, timeout_seconds: float) -> list[Finding]:
    """Return whether Spark counts the ledger of ``settings``; nothing if there is nothing to compare yet."""
    drain, url = settings.drain, settings.ledger.url
    try:
        own = CountedLedger(await read_ledger_id(open_store(url), url) or "", url)
    except HeadgateError as error:
        return [problem(CHECK, str(error), "make the ledger readable, or correct [ledger] url")]
    if not own.ledger_id:
        return []  # No daemon has started on it.
    try:
        if drain.results is not None:
            counted = await _of_results(drain.results)
        else:
            counted = await _of_process(settings, timeout_seconds)
    except DrainCheckError as error:
        if drain.spawn and error.failure == "unreachable":
            return []  # The daemon does not run now, and starts the process itself.
        return [problem(CHECK, str(error), "start the Spark service, or correct [drain] socket")]
    except HeadgateError as error:
        return [problem(CHECK, str(error), "correct [drain] results, or repair the store")]
    if counted is None:
        return [warning(CHECK, "what Spark counts is not known yet", "wait until it has counted, and repeat this")]
    if (reason := wrong_ledger(own, counted)) is not None:
        what, _, remedy = reason.partition(": start ")
        return [problem(CHECK, what, f"start {remedy}")]
    return [ok(CHECK, f"Spark counts {counted.url}, the ledger with the id {own.ledger_id}")]


async def _of_process(settings: Settings, timeout_seconds: float) -> CountedLedger | None:
    connection = await Connection.open(Path(settings.drain_socket), timeout_seconds)
    try:
        return (await connection.request(Ping(), Pong, timeout_seconds)).ledger
    finally:
        connection.close()


async def _of_results(url: str) -> CountedLedger | None:
    store = open_store(url)
    for folder in await store.folders("backlog"):
        result = await newest_result(store, int(folder.removeprefix("shard=")))
        if result.watermark:
            return CountedLedger(result.ledger_id, url)
    return None
