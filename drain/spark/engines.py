"""The errors of engines, and the calls that differ between a JVM of this process and a Spark Connect server.

The calls name a run, cancel it, and ping.

A classic session cancels a run by its job group (an interrupt by tag does not reach it). A Connect
session cancels all of its operations: only this process uses it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from drain.spark.chunks import MustRestartError
from headgate.errors import HeadgateError

_LOST: Final = ("NO_ACTIVE_SESSION", "INVALID_HANDLE", "RETRIES_EXCEEDED", "SESSION_CLOSED")
"""Prefixes of the error conditions after which a Connect session never answers again."""
_LOST_STATUS: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
"""gRPC status codes of a server that is gone."""
ENGINE_ERRORS: Final = (PySparkException, Py4JError, ConnectionError, EOFError)
"""The exceptions that a call to an engine raises, except for bugs."""
_OBJECT_ERROR = re.compile(r"(?:Object|BadFile|UnknownType)Error: (.+)")
"""An error of drain.spark.object_reader, drain.backlog.aggregates or drain.external.file_reader among stack traces."""


class RunError(HeadgateError):
    """A Spark run failed; the previous result remains."""


class JvmGoneError(MustRestartError):
    """The JVM or Connect server is gone. A session cannot be restored."""


class ClassicCalls:
    """For a session whose JVM is a child of this process, with executors anywhere.

    The calls of a session except queries. They block, and raise one of ENGINE_ERRORS.
    """

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext
        self._jvm: Any = session._jvm  # noqa: SLF001 - the only way to reach the JVM without a job

    def begin(self, run: str) -> None:
        """Name the next run of the calling thread. Runs of different kinds share the cores (`SETTINGS`)."""
        self._context.setJobGroup(run, "backlog", interruptOnCancel=True)
        self._context.setLocalProperty("spark.scheduler.pool", run.rpartition("-")[0])

    def cancel(self, run: str) -> None:
        self._context.cancelJobGroup(run)

    def ping(self) -> None:
        """Return once the engine has answered."""
        self._jvm.java.lang.System.nanoTime()


class ConnectCalls:
    """The same calls for a session on a Spark Connect server."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def begin(self, run: str) -> None:
        """There is one run at a time, so it needs no name."""

    def cancel(self, run: str) -> None:  # noqa: ARG002 - the session has no other run
        self._session.interruptAll()

    def ping(self) -> None:
        self._session.conf.get("spark.app.name", "")


def calls_of(session: SparkSession) -> ClassicCalls | ConnectCalls:
    return ClassicCalls(session) if hasattr(session, "_jvm") else ConnectCalls(session)


def is_gone(error: BaseException) -> bool:
    """Return whether ``error`` means that the engine will not answer again in this process."""
    if isinstance(error, (Py4JNetworkError, ConnectionError, EOFError)):
        return True
    if isinstance(error, PySparkException):
        condition = error.getCondition() or str(error).removeprefix("[")
        return condition.startswith(_LOST) or _grpc_status(error) in _LOST_STATUS
    return False


def _grpc_status(error: PySparkException) -> str:
    status = getattr(error, "getGrpcStatusCode", None)
    return "" if status is None else getattr(status(), "name", "")


@contextmanager
def run_errors(prefix: str = "", doing: str = "count") -> Iterator[None]:
    """Raise RunError, its text after ``prefix``, or JvmGoneError instead of the engine's errors."""
    try:
        yield
    except ENGINE_ERRORS as error:
        if is_gone(error):
            raise JvmGoneError(f"Spark does not answer: {str(error) or type(error).__name__}") from error
        raise RunError(prefix + error_summary(error, doing)) from error


def error_summary(error: Exception, doing: str = "count") -> str:
    """Return one line with the cause, from Spark's page of stack traces. Errors of objects name theirs."""
    text = str(error)
    if found := _OBJECT_ERROR.search(text):
        return f"Spark could not {doing}: {found.group(1)[:500]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    causes = [line for line in lines if line.startswith("Caused by:")]
    cause = causes[-1] if causes else lines[0]
    return f"Spark could not {doing}: {cause[:500]}"
