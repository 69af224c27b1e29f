"""The daemon's connection to whatever answers drain checks: its Spark process, another one, or published results.

1. It starts and supervises the Spark process if the settings say so.
2. When checks are answered again, the leaders repeat theirs.
3. An answer about another ledger than the cluster's is refused, and the state is degraded until one about the
   cluster's arrives.
"""

import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import structlog
from msgspec.structs import replace

from controller.settings.load import Settings, ledger_unreachable_from_executors
from drain import protocol
from drain.checker.checker import SparkDrainChecker
from drain.checker.supervisor import DrainSupervisor, service_command
from headgate.backoff import RestartPolicy
from headgate.storage.object_store import open_store
from metrics import events
from metrics.label_values import DrainState

if TYPE_CHECKING:
    from drain.checker.results_checker import ResultsChecker

DrainChecker: TypeAlias = "SparkDrainChecker | ResultsChecker"

log = structlog.get_logger(__name__)


def spark_options(settings: Settings) -> list[str]:
    """Return the options of the Spark process. Without those of compaction it compacts nothing."""
    drain, compaction = settings.drain, settings.compaction
    options = [
        ("--master", drain.master),
        ("--driver-memory", drain.driver_memory),
        ("--run-timeout-seconds", f"{drain.run_timeout_seconds:g}"),
        *(("--conf", f"{name}={value}") for name, value in drain.spark_conf.items()),
    ]
    if compaction.enabled:
        options += [
            ("--compaction-chunks", str(compaction.min_chunks)),
            ("--compaction-delay-seconds", f"{compaction.delay_seconds:g}"),
            ("--compaction-delete-after-seconds", f"{compaction.delete_delay_seconds:g}"),
        ]
    if drain.external is not None:
        options.append(("--external", drain.external))
    return [word for option in options for word in option]


@dataclass(eq=False, repr=False)
class DrainConnection:
    """One per daemon; all its leaders share it."""

    settings: Settings
    observer: events.Observer
    rng: random.Random
    recheck: Callable[[], None]
    """Called when checks that failed before may be answered now."""
    state: tuple[DrainState, str] = ("off", "the drain service has not replied yet")
    _reported: tuple[DrainState, str] = state
    """The state according to the supervisor, or else to the checker."""
    _wrong_ledger: str | None = None
    """Why the last answer was about another ledger; None: it was about the cluster's."""
    _supervisor: DrainSupervisor | None = None
    _checker: "DrainChecker | None" = None
    _ledger_id: Callable[[], str | None] = lambda: None

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the Spark process if the settings say so, and supervise it until ``stack`` is closed."""
        settings, socket, url = self.settings.drain, self.settings.drain_socket, self.settings.ledger.url
        if not settings.spawn or settings.results is not None:
            return
        if ledger_unreachable_from_executors(self.settings):
            log.warning("drain.ledger_unreachable_from_executors", master=settings.master, ledger=url)
        folder = Path(settings.folder)
        self._supervisor = DrainSupervisor(
            command=service_command(url, socket, folder, spark_options(self.settings)),
            socket=socket,
            folder=folder,
            on_state=self._on_state,
            on_restart=lambda: self.observer.observe(events.DrainServiceRestarted()),
            policy=RestartPolicy(start_timeout_seconds=settings.start_timeout_seconds),
            rng=self.rng,
        )
        await stack.enter_async_context(self._supervisor)

    async def connect(self, stack: AsyncExitStack, ledger_id: Callable[[], str | None]) -> DrainChecker:
        """Connect to the Spark process or the results until ``stack`` is closed.

        ``ledger_id``: of the cluster's ledger; None while this daemon does not know it.
        """
        settings, supervisor = self.settings.drain, self._supervisor
        self._ledger_id = ledger_id
        if settings.results is not None:
            # Most daemons ask Spark, and start sooner without this import.
            from drain.checker.results_checker import ResultsChecker  # noqa: PLC0415

            self._checker = ResultsChecker(
                open_store(settings.results),
                stale_seconds=settings.results_stale_seconds,
                observer=self.observer,
                on_state=self._on_state,
                on_result=self.recheck,
                url=settings.results,
                require_ledger=self._require_ledger,
            )
        else:
            self._checker = SparkDrainChecker(
                self.settings.drain_socket,
                pid=None if supervisor is None else lambda: supervisor.pid,
                timeout_seconds=settings.run_timeout_seconds,
                # The supervisor reports the state of a spawned process. For another one, only its replies show it.
                on_state=None if settings.spawn else self._on_state,
                observer=self.observer,
                rng=self.rng,
                require_ledger=self._require_ledger,
            )
        return await stack.enter_async_context(self._checker)

    async def query_backlog(self, request: protocol.BacklogRequest) -> protocol.BacklogResponse:
        """Return the backlogs of a shard of the cluster's ledger; raises DrainCheckError."""
        assert self._checker is not None, "this daemon leads a shard before its drain checker exists"
        return await self._checker.backlog(replace(request, ledger_id=self._ledger_id() or ""))

    def _require_ledger(self, counted: protocol.CountedLedger) -> None:
        """Raise DrainCheckError unless ``counted`` is the cluster's ledger."""
        before = self._wrong_ledger
        self._wrong_ledger = protocol.wrong_ledger(
            protocol.CountedLedger(self._ledger_id() or "", self.settings.ledger.url), counted
        )
        if self._wrong_ledger != before:
            if self._wrong_ledger is not None:
                log.error("drain.wrong_ledger", reason=self._wrong_ledger)
            self._update()
        if self._wrong_ledger is not None:
            raise protocol.DrainCheckError(self._wrong_ledger, "wrong_ledger")

    def _on_state(self, state: DrainState, reason: str) -> None:
        self._reported = (state, reason)
        self._update()

    def _update(self) -> None:
        before = self.state[0]
        self.state = self._reported if self._wrong_ledger is None else ("degraded", self._wrong_ledger)
        state, reason = self.state
        if state != before:
            log.info("drain.state", state=state, reason=reason)
        self.observer.observe(events.DrainServiceStateChanged(state=state))
        if state == "ready" and before != "ready":
            self.recheck()

    def problem(self) -> str | None:
        """Return why drain checks are not answered; None if they are."""
        state, reason = self.state
        return None if state == "ready" else reason
