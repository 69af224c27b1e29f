"""The calls that differ between a JVM of this process and a Spark Connect server: name a run, cancel it, ping.

A classic session cancels a run by its job group (an interrupt by tag does not reach it). A Connect
session cancels all of its operations: only this process uses it.
"""

from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_LOST: Final = ("NO_ACTIVE_SESSION", "INVALID_HANDLE", "RETRIES_EXCEEDED", "SESSION_CLOSED")
"""Prefixes of the error conditions after which a Connect session never answers again."""
_LOST_STATUS: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
"""gRPC status codes of a server that is gone."""


ENGINE_ERRORS: Final = (PySparkException, Py4JError, ConnectionError, EOFError)
"""The exceptions that a call to an engine raises, except for bugs."""


class ClassicCalls:
    """For a session whose JVM is a child of this process, with executors anywhere.

    The calls of a session except queries. They block, and raise one of ENGINE_ERRORS.
    """

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext
        self._jvm: Any = session._jvm  # noqa: SLF001 - the only way to reach the JVM without a job

    def begin(self, run: str) -> None:
        """Name the next run of the calling thread."""
        self._context.setJobGroup(run, "backlog", interruptOnCancel=True)

    def cancel(self, run: str) -> None:
        """Cancel the run with that name, if it is running."""
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
