"""The daemon's connection to whatever answers drain checks: its Spark process, another one, or published results.

It starts and supervises the Spark process if the settings say so. When checks are answered again, the
leaders repeat theirs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from controller.leader.drain_check import DrainChecker
from controller.settings.load import CompactionSettings, Settings, ledger_unreachable_from_executors
from drain.checker.checker import SparkDrainChecker
from drain.checker.results_checker import ResultsChecker
from drain.checker.supervisor import DrainSupervisor, service_command
from drain.protocol import BacklogResponse, ExternalBacklogQuery
from headgate.restart_policy import RestartPolicy
from headgate.storage.object_store import open_store
from metrics import events
from metrics.label_values import DrainState

log = structlog.get_logger(__name__)


def compaction_arguments(settings: CompactionSettings) -> list[str]:
    """Return the compaction arguments of the Spark process; none if compaction is disabled."""
    if not settings.enabled:
        return []
    return [
        *("--compaction-chunks", str(settings.min_chunks)),
        *("--compaction-delay-seconds", f"{settings.delay_seconds:g}"),
        *("--compaction-delete-after-seconds", f"{settings.delete_delay_seconds:g}"),
    ]


class DrainConnection:
    """One per daemon; all its leaders share it."""

    def __init__(
        self, settings: Settings, observer: events.Observer, rng: random.Random, recheck: Callable[[], None]
    ) -> None:
        """``recheck`` is called when checks that failed before may be answered now."""
        self.state: tuple[DrainState, str] = ("off", "the drain service has not replied yet")
        """State of the drain service, and its reason."""
        self._settings = settings
        self._observer = observer
        self._rng = rng
        self._recheck = recheck
        self._checker: SparkDrainChecker | ResultsChecker | None = None

    async def start(self, stack: AsyncExitStack) -> DrainChecker:
        """Start the Spark process if the settings say so, and connect until ``stack`` is closed."""
        settings = self._settings.drain
        if settings.results is not None:
            results = self._checker = await stack.enter_async_context(self._results_checker(settings.results))
            return results
        secret_file = None if settings.secret_file is None else Path(settings.secret_file)
        if settings.spawn:
            if ledger_unreachable_from_executors(self._settings):
                log.warning(
                    "drain.ledger_unreachable_from_executors", master=settings.master, ledger=self._settings.ledger.url
                )
            command = service_command(
                ledger_url=self._settings.ledger.url,
                socket=settings.socket,
                secret_file=settings.secret_file,
                folder=Path(settings.folder),
                master=settings.master,
                reader=settings.reader,
                spark_conf=settings.spark_conf,
                driver_memory=settings.driver_memory,
                run_timeout_seconds=settings.run_timeout_seconds,
                external=settings.external,
                compaction_arguments=compaction_arguments(self._settings.compaction),
            )
            supervisor = DrainSupervisor(
                command=command,
                socket=settings.socket,
                secret_file=secret_file,
                folder=Path(settings.folder),
                on_state=self._on_state,
                on_restart=lambda: self._observer.observe(events.DrainServiceRestarted()),
                policy=RestartPolicy(start_timeout_seconds=settings.start_timeout_seconds),
                rng=self._rng,
            )
            await stack.enter_async_context(supervisor)
        checker = SparkDrainChecker(
            settings.socket,
            secret_file=secret_file,
            timeout_seconds=settings.run_timeout_seconds,
            # The supervisor reports the state of a spawned process. For another one, only its
            # replies show it.
            on_state=None if settings.spawn else self._on_state,
            observer=self._observer,
            rng=self._rng,
        )
        self._checker = await stack.enter_async_context(checker)
        return checker

    def _results_checker(self, url: str) -> ResultsChecker:
        return ResultsChecker(
            open_store(url),
            stale_seconds=self._settings.drain.results_stale_seconds,
            on_state=self._on_state,
            on_result=self._recheck,
        )

    async def query_backlog(self, shard: int, now_ms: int, external: Sequence[ExternalBacklogQuery]) -> BacklogResponse:
        """Return the backlogs of ``shard``; raises DrainCheckError."""
        assert self._checker is not None, "this daemon leads a shard before its drain checker exists"
        return await self._checker.backlog([shard], now_ms, external)

    def _on_state(self, state: DrainState, reason: str) -> None:
        if state != self.state[0]:
            log.info("drain.state", state=state, reason=reason)
        became_ready = state == "ready" and self.state[0] != "ready"
        self.state = (state, reason)
        self._observer.observe(events.DrainServiceStateChanged(state=state))
        if became_ready:
            self._recheck()

    def problem(self) -> str | None:
        """Return why drain checks are not answered; None if they are."""
        state, reason = self.state
        return None if state == "ready" else reason
