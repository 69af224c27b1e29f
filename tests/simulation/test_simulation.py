"""The whole cluster in virtual time: all invariants hold under any faults, and a planted bug is noticed.

`make simulate SEEDS=200` plays more seeds. A failed run prints its story and its seed.
"""

import itertools
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import controller.decisions.placement
import controller.decisions.verdicts
import controller.leader.leader
import controller.leader.subscription_registry
import controller.retention.policy
import controller.snapshots.job
import coordinator.assignment_reconciler
import coordinator.balancing.weights
from controller.decisions import producer_expiry
from controller.devices.intake import DeviceIntake
from controller.devices.session_port import Delivery
from controller.devices.subscriptions import DeviceSubscriptions
from controller.snapshots.format import encode_snapshot
from controller.state.producers import Producers, ProducerState
from controller.state.shard_state import ShardState
from controller.state.steady_clock import SteadyClock
from controller.state.usage import Usage
from coordinator.balancing.weights import weight_of
from coordinator.decisions.gate import compute_gate
from coordinator.state.subscription import Subscription
from headgate.client.decisions.leader_belief import LeaderBelief
from headgate.errors import ObjectExistsError
from headgate.model import entries as e
from headgate.model.entries import SubscriptionSeek
from headgate.protocol import messages as m
from headgate.protocol.backlog import RecordCount
from tests.simulation.broken_promise import InvariantViolationError
from tests.simulation.clients import KEY_PREFIX
from tests.simulation.failure import failure_of, shrunk
from tests.simulation.import_program import IMPORT_NAME
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.plan import BUSY, Chunks, plan_of
from tests.simulation.play import play, run_seed
from tests.support.fakes.object_store import FakeStore

pytestmark = pytest.mark.simulation
SEEDS = 100
"""A planted bug must be found within this number of seeds."""
OFTEN = 0.3
"""Probability of switching device intake before a publication, for tests of switching."""


FRESH_SEEDS, BLOCK = 1000, 25


class ForgetfulStore(FakeStore):
    """A store whose put-if-absent is a plain put: two leaders can write the same chunk number."""

    async def create(self, path: str, data: bytes) -> None:
        try:
            await super().create(path, data)
        except ObjectExistsError:
            self.objects[path] = data


def found(first: int = 1, play_seed: Callable[..., InvariantChecker] = run_seed, **planted: Any) -> str:
    """Play seeds from ``first`` until an invariant is violated, and return the message; fail if none is."""
    for seed in range(first, first + SEEDS):
        try:
            play_seed(seed, **planted)
        except InvariantViolationError as error:
            return str(error)
        except BaseExceptionGroup as group:
            broken = group.subgroup(InvariantViolationError)
            if broken is not None:
                return _first(broken)
            # A daemon failed because of the planted bug, but this test is about the checker.
    pytest.fail(f"not found within {SEEDS} seeds")


def _first(group: BaseExceptionGroup[InvariantViolationError]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def plant_open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        coordinator.assignment_reconciler,
        "compute_gate",
        lambda layout, drained, kind, _order: compute_gate(layout, drained, kind, "none"),
    )


@pytest.mark.parametrize("seed", range(3))
def test_all_invariants_hold_in_busy_worlds(seed: int) -> None:
    """Nothing lost, nothing twice, first deliveries in order, children after their ancestors, everything delivered."""
    assert run_seed(seed, BUSY).stored["orders"]


@pytest.mark.parametrize("block", range(FRESH_SEEDS // BLOCK))
def test_all_invariants_hold_under_any_faults(block: int) -> None:
    """Every commit plays seeds of its own, and the same ones again when it is tested again."""
    first = first_fresh_seed() + block * BLOCK
    for seed in range(first, first + BLOCK):
        assert run_seed(seed).chunks


def first_fresh_seed() -> int:
    """Return a number that the newest commit determines; 0 outside a working copy."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return int(commit.stdout[:8] or "0", 16)


@pytest.mark.parametrize("seed", [3, 5, 6, 9])
def test_how_chunks_are_encoded_and_decoded_changes_no_story(seed: int) -> None:
    encodings: tuple[Chunks, ...] = ("parquet", "shared", "memory")
    stories = [play(plan_of(seed), chunks=chunks).story.rows for chunks in encodings]

    assert stories[1:] == stories[:1] * 2


def test_a_planted_bug_is_reduced_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the gate blocks nothing. It shows with a STREAM consumer, records and a split, and without the rest."""
    plant_open_gate(monkeypatch)
    failure = next(found for seed in itertools.count(1) if (found := failure_of(plan_of(seed))) is not None)

    found = shrunk(failure, 60, lambda _: None)

    assert len(found.plan.parts) <= 4, found.command
    assert any("split" in part or "stream" in part for part in found.plan.parts)
    assert "granted before its ancestor" in found.report()


def test_a_seed_repeats_exactly() -> None:
    """Without this, a failure could not be reproduced."""
    assert run_seed(3).story.rows == run_seed(3).story.rows


def test_odd_seeds_split_merge_and_prune_automatically() -> None:
    """Otherwise the invariants would not cover automatic changes."""
    checker = run_seed(1, BUSY)

    assert checker.automatic_changes > 0
    assert checker.pruned > 0
    assert any("compacts chunks" in row.what for row in checker.story.rows), "together with compaction"


def test_a_segment_pruned_before_it_is_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: retention considers every segment drained."""
    monkeypatch.setattr(controller.retention.policy, "_undrained", lambda *_: ())

    assert "was pruned" in found(first=75)


def test_a_command_that_is_executed_after_it_was_reported_as_failed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: leaders ignore deadlines."""
    monkeypatch.setattr(controller.leader.leader, "judge_deadline", lambda *_: None)

    assert "was reported as not executed, and is executed" in found(first=21)


def test_two_writers_of_one_chunk_number_are_found() -> None:
    """Planted: the store overwrites existing objects."""
    assert "written twice" in found(first=4, store_kind=ForgetfulStore)


def test_a_child_before_its_parent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the gate blocks nothing."""
    plant_open_gate(monkeypatch)

    assert "granted before its ancestor" in found()


def test_drained_facts_that_outlive_a_seek_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a parent that was moved back still counts as drained."""
    fold = Subscription.apply

    def keep_drained(self: Subscription, entry: Any, at_ms: int) -> None:
        drained = set(self.drained)
        fold(self, entry, at_ms)
        if isinstance(entry, SubscriptionSeek):
            self.drained |= drained

    monkeypatch.setattr(Subscription, "apply", keep_drained)

    broken = found(first=52)
    noticed = ("granted before its ancestor", "never delivered", "unacknowledged records, not 0")
    assert any(text in broken for text in noticed)


def test_a_subscription_that_comes_back_after_its_deletion_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a consumer of the deleted subscription may create it again."""
    monkeypatch.setattr(controller.leader.subscription_registry, "judge_deleted_subscription", lambda *_: None)

    assert "came back without a consumer" in found()


def test_a_puback_before_the_record_is_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a message is acknowledged as soon as it is accepted."""
    accept = DeviceIntake.accept

    def hasty(self: DeviceIntake, delivery: Delivery) -> None:
        delivery.acknowledge()
        accept(self, delivery)

    monkeypatch.setattr(DeviceIntake, "accept", hasty)

    broken = found(first=2)
    assert "b'device/" in broken
    assert "stored after" in broken or "was committed and is lost" in broken


def test_a_device_session_that_is_left_before_it_is_empty_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: when switched off, the leader unsubscribes and leaves while messages are still queued."""
    wanted = DeviceSubscriptions._wanted_filters
    monkeypatch.setattr(
        DeviceSubscriptions, "_wanted_filters", lambda self, session: wanted(self, session) if self._enabled else set()
    )

    assert "switched off, but the broker's session ends with" in found()


def test_a_missing_device_subscription_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an intake that is switched on subscribes to nothing before the next term."""
    set_enabled = DeviceSubscriptions.set_enabled
    monkeypatch.setattr(
        DeviceSubscriptions, "set_enabled", lambda self, enabled: None if enabled else set_enabled(self, enabled)
    )

    assert "switched on, but the broker's session ends with" in found(device_switches=OFTEN)


@pytest.mark.parametrize("seed", range(1, 3))
def test_devices_can_be_switched_at_any_moment(seed: int) -> None:
    """Often enough that leaders change while the session is being emptied."""
    assert run_seed(seed, device_switches=OFTEN).stored["orders"]


def test_device_filters_that_change_without_a_chunk_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a leader adds and removes filters although it may have a successor."""

    async def hasty(_: DeviceSubscriptions) -> None:
        """Return without waiting for a chunk."""

    monkeypatch.setattr(DeviceSubscriptions, "_wait_for_barrier", hasty)

    assert "but the broker's session ends with" in found(first=5, device_switches=OFTEN)


def test_weights_that_follow_every_change_of_load_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: no band, so that segments move with every change of load."""
    monkeypatch.setattr(coordinator.balancing.weights, "leaves_band", lambda load, weight: weight_of(load) != weight)

    assert "changed its weight" in found(scale=BUSY)


def test_balancing_by_load_slices_and_devices_occur_together() -> None:
    """Otherwise the invariants would not cover weights, slices and devices together."""
    checker = run_seed(2)

    assert checker.weight_changes > 0
    assert checker.partial_grants > 0
    assert any(key.startswith(KEY_PREFIX) for _, key in checker.counters)
    assert checker.duplicate_device_records, "the broker redelivers what was not acknowledged in time"


def test_reported_backlogs_are_exact_or_called_estimates() -> None:
    """Otherwise the invariant about backlogs would not cover shared segments."""
    backlogs = run_seed(2).backlogs

    assert backlogs.exact > 0
    assert backlogs.estimated > 0


def test_a_backlog_that_is_wrong_and_not_called_an_estimate_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the lowest position of a shared segment counts for all its buckets."""
    monkeypatch.setattr(
        Subscription,
        "unacknowledged_records",
        lambda self, segment, end_offset: RecordCount(end_offset - self.position(segment)),
    )

    assert "unacknowledged records, not" in found()


def test_ledger_time_that_follows_every_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the leader takes its machine's clock as it is, so the ledger's time is a week ahead for a week."""
    monkeypatch.setattr(SteadyClock, "read", lambda _self, wall_ms, _elapsed_ms: wall_ms)

    assert "is of the future" in found(first=25)


def test_a_changed_batch_that_is_reported_as_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a repetition is recognized by its number of records."""
    for module in (controller.decisions.verdicts, controller.decisions.placement):
        monkeypatch.setattr(module, "batch_digest", lambda batch: bytes(len(batch.records)))

    assert "a changed batch was reported as stored" in found(changed_batches=True)


@pytest.mark.parametrize("seed", range(3))
def test_forged_announcements_change_nothing_under_any_faults(seed: int) -> None:
    """Clients follow every failover, and no forged one."""
    assert run_seed(seed, forged_announcements=True).stored["orders"]


def test_a_client_that_believes_announcements_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the highest epoch that was announced counts, as if only daemons could announce."""

    def believe(self: LeaderBelief, announcement: m.LeaderAnnouncement, _: float) -> bool:
        if self.leader is None or announcement.leader_epoch > self.leader.leader_epoch:
            self.leader = announcement
        return announcement == self.leader

    monkeypatch.setattr(LeaderBelief, "announced", believe)
    monkeypatch.setattr(LeaderBelief, "answered", lambda *_: False)

    assert "believes in term" in found(forged_announcements=True)


@pytest.mark.parametrize("seed", range(1, 3))
def test_changed_batches_are_refused_under_any_faults(seed: int) -> None:
    """Also by the next leader, and by one that has read a snapshot."""
    assert run_seed(seed, changed_batches=True).changed_batches_refused > 0


def test_an_import_continues_exactly_once_under_any_faults() -> None:
    """However its runs end, and however many anonymous producers the shard forgets meanwhile: many in a busy world."""
    checker = run_seed(1, BUSY, named_producer=True)

    (position,) = (found for (_, name, _), found in checker.source_positions.items() if name == IMPORT_NAME)
    assert int(position) > 10
    assert checker.producers_removed > 10


@pytest.mark.parametrize("seed", range(1, 3))
def test_quotas_lose_double_and_reorder_nothing_under_any_faults(seed: int) -> None:
    """Replies are delayed, and batches and heartbeats refused, while leaders change."""
    checker = run_seed(seed, quotas=True)

    assert checker.stored["orders"]
    assert checker.quotas_exceeded["requests_per_second"] + checker.quotas_exceeded["bytes_per_second"] > 10


def play_with_evictions(seed: int) -> InvariantChecker:
    """Play a seed of which every second operation evicts a consumer."""
    plan = plan_of(seed)
    steps = [replace(step, operation="evict_consumer") if step.number % 2 else step for step in plan.steps]
    return play(replace(plan, steps=tuple(steps)))


def test_evictions_lose_double_and_reorder_nothing_under_any_faults() -> None:
    """Consumers are evicted while they read, and while leaders change; each program that is evicted ends."""
    assert sum(len(play_with_evictions(seed).evicted_programs) for seed in range(1, 6)) > 5


def test_an_evicted_program_that_joins_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an eviction by a command counts like one for missing heartbeats."""
    record_removal = Subscription._record_removal
    monkeypatch.setattr(
        Subscription,
        "_record_removal",
        lambda self, removed, entry, at_ms: record_removal(
            self, removed, msgspec.structs.replace(entry, token=""), at_ms
        ),
    )

    assert "came back after a command had evicted it" in found(play_seed=play_with_evictions)


def test_a_wrong_count_of_objects_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what a deleted subscription contained stays counted."""
    add = Usage.add_subscription
    monkeypatch.setattr(Usage, "add_subscription", lambda self, found, times=1: add(self, found) if times > 0 else None)

    assert "differs from its ledger in usage" in found()


def test_names_that_expire_like_anonymous_producers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: above the limit, named producers are removed as well."""
    expired_producers = producer_expiry.expired_producers

    def greedy(producers: Producers, **rules: Any) -> e.ProducersExpired | None:
        expired = expired_producers(producers, **rules)
        if expired is None:
            return None
        return msgspec.structs.replace(expired, producer_ids=[*expired.producer_ids, *producers.with_window])

    monkeypatch.setattr(producer_expiry, "expired_producers", greedy)

    assert "is forgotten, and it is not an anonymous one" in found(named_producer=True)


def test_tokens_that_open_two_identities_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a repeated open request of an anonymous producer opens another identity."""
    opened_by = Producers.opened_by

    def forgetful(producers: Producers, token: str) -> ProducerState | None:
        known = opened_by(producers, token)
        return known if known is not None and known.name is not None else None

    monkeypatch.setattr(Producers, "opened_by", forgetful)

    assert "one token opened" in found(named_producer=True)


def test_a_snapshot_that_forgets_finished_batches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the next leader would not answer a repeated batch with its original offsets."""

    def forgetful(state: ShardState, *, written_at_ms: int) -> bytes:
        for producer in state.producers.values():
            producer.finished.clear()
        return encode_snapshot(state, written_at_ms=written_at_ms)

    monkeypatch.setattr(controller.snapshots.job, "encode_snapshot", forgetful)

    assert "differs from its ledger in producers" in found()
