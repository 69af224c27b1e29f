"""The whole cluster in virtual time: no promise is broken in any weather, and a broken rule is noticed.

`make simulate SEEDS=200` plays more seeds; a failed run prints its seed and the last of its story.
"""

from collections.abc import Sequence
from typing import Any

import pytest

import controller.leader.subscription_registry
import controller.retention.policy
import controller.snapshots.job
import coordinator.assignment_reconciler
import coordinator.balancing.weights
from controller.devices.intake import DeviceIntake
from controller.devices.session_port import Delivery
from controller.devices.subscriptions import DeviceSubscriptions
from controller.snapshots.format import encode_snapshot
from controller.state.shard_state import ShardState
from coordinator.balancing.weights import weight_of
from coordinator.decisions.gate import compute_gate
from coordinator.state.subscription import Subscription
from headgate.errors import ObjectExistsError
from headgate.model.entries import SubscriptionSeek
from tests.simulation.broken_promise import InvariantViolationError
from tests.simulation.clients import KEY_PREFIX
from tests.simulation.play import run_seed
from tests.support.device_broker import FakeDeviceSession
from tests.support.object_store import FakeStore

SEEDS = 100
"""A planted bug has to be found within so many."""


class ForgetfulStore(FakeStore):
    """A store whose put-if-absent is just a put: two leaders can both write one chunk number."""

    async def create(self, path: str, data: bytes) -> None:
        try:
            await super().create(path, data)
        except ObjectExistsError:
            self.objects[path] = data


def found(first: int = 0, **planted: Any) -> str:
    """Play seed after seed, from ``first`` on, until a promise is broken, and return which; fails if none is."""
    for seed in range(first, first + SEEDS):
        try:
            run_seed(seed, **planted)
        except InvariantViolationError as error:
            return str(error)
        except BaseExceptionGroup as group:
            broken = group.subgroup(InvariantViolationError)
            if broken is not None:
                return _first(broken)
            # A daemon that trips over the planted bug itself has noticed it as well, but this looks for the checker.
    pytest.fail(f"not found within {SEEDS} seeds")


def _first(group: BaseExceptionGroup[InvariantViolationError]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def test_one_seed_keeps_every_promise() -> None:
    """In the unit ring, so that a change that breaks everything is seen at once."""
    checker = run_seed(0, fault_rounds=2)

    assert checker.stored["orders"]


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(1, 11))
def test_every_promise_is_kept_in_any_weather(seed: int) -> None:
    """Nothing lost, nothing twice, first deliveries in order, children after their ancestors, everything delivered."""
    run_seed(seed)


@pytest.mark.simulation
def test_a_seed_plays_the_same_story_again() -> None:
    """Without this, a failure could not be looked at."""
    assert run_seed(3, fault_rounds=6).trace == run_seed(3, fault_rounds=6).trace


@pytest.mark.simulation
def test_odd_seeds_split_merge_and_prune_by_themselves() -> None:
    """Or the promises above would say nothing of automatic changes."""
    checker = run_seed(1)

    assert checker.automatic_changes > 0
    assert checker.pruned > 0


@pytest.mark.simulation
def test_a_segment_pruned_before_it_is_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: retention takes everything for drained."""
    monkeypatch.setattr(controller.retention.policy, "_is_drained", lambda *_: True)

    assert "was pruned" in found()


@pytest.mark.simulation
def test_two_writers_of_one_chunk_number_are_found() -> None:
    """Planted: the store forgets that a name is taken."""
    assert "written twice" in found(store_kind=ForgetfulStore)


@pytest.mark.simulation
def test_a_child_before_its_parent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the gate lets everything through."""
    monkeypatch.setattr(
        coordinator.assignment_reconciler,
        "compute_gate",
        lambda layout, drained, kind, _order: compute_gate(layout, drained, kind, "none"),
    )

    assert "granted before its ancestor" in found()


@pytest.mark.simulation
def test_drained_facts_that_outlive_a_seek_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a rewound parent still counts as drained: its children are granted beside it, or nobody reads it again."""
    fold = Subscription.apply

    def forgets_nothing(self: Subscription, entry: Any, at_ms: int) -> None:
        drained = set(self.drained)
        fold(self, entry, at_ms)
        if isinstance(entry, SubscriptionSeek):
            self.drained |= drained

    monkeypatch.setattr(Subscription, "apply", forgets_nothing)

    broken = found()
    assert "granted before its ancestor" in broken or "never delivered" in broken


@pytest.mark.simulation
def test_a_subscription_that_comes_back_after_its_deletion_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a consumer that was in it may begin another, as any other program may."""
    monkeypatch.setattr(controller.leader.subscription_registry, "judge_deleted_subscription", lambda *_: None)

    assert "came back and nobody is in it" in found()


@pytest.mark.simulation
def test_a_device_that_is_told_before_its_record_is_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the broker hears that a message is stored as soon as it is taken."""
    take = DeviceIntake.accept

    def hasty(self: DeviceIntake, delivery: Delivery) -> None:
        delivery.acknowledge()
        take(self, delivery)

    monkeypatch.setattr(DeviceIntake, "accept", hasty)

    broken = found(first=2)
    assert "b'device/" in broken
    assert "stored after" in broken or "committed and lost" in broken


@pytest.mark.simulation
def test_a_session_of_devices_that_is_left_with_something_in_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: switched off, it drops its filters and goes, whatever still waits at the broker."""
    wanted = DeviceSubscriptions._wanted_filters
    monkeypatch.setattr(
        DeviceSubscriptions, "_wanted_filters", lambda self, session: wanted(self, session) if self._enabled else set()
    )

    assert "switched off, and in the end the broker keeps" in found()


@pytest.mark.simulation
def test_topics_of_devices_that_are_not_followed_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: whoever is switched on while it is on its way out forgets that it has dropped what it followed."""
    remove_subscriptions = FakeDeviceSession.remove_subscriptions

    async def forgetful(self: FakeDeviceSession, topic_filters: Sequence[str], connection: int) -> bool:
        await remove_subscriptions(self, topic_filters, connection)
        return False

    monkeypatch.setattr(FakeDeviceSession, "remove_subscriptions", forgetful)

    assert "switched on, and in the end the broker keeps" in found()


@pytest.mark.simulation
def test_weights_that_follow_every_swing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: no band, so that segments move to and fro with their load."""
    monkeypatch.setattr(coordinator.balancing.weights, "leaves_band", lambda load, weight: weight_of(load) != weight)

    assert "and weighs" in found(first=11)


@pytest.mark.simulation
def test_worlds_that_balance_by_load_weigh_and_share_and_devices_publish() -> None:
    """Or the promises above would say nothing of weights, shares and devices together."""
    checker = run_seed(2)

    assert checker.weight_changes > 0
    assert checker.partial_grants > 0
    assert any(key.startswith(KEY_PREFIX) for _, key in checker.counters)
    assert checker.duplicate_device_records, "the broker gives again what was not acknowledged in time"


@pytest.mark.simulation
def test_a_snapshot_that_forgets_finished_batches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a repeated batch would get no original offsets from the next leader."""

    def forgetful(state: ShardState, *, written_at_ms: int) -> bytes:
        for producer in state.producers.values():
            producer.finished.clear()
        return encode_snapshot(state, written_at_ms=written_at_ms)

    monkeypatch.setattr(controller.snapshots.job, "encode_snapshot", forgetful)

    assert "has other producers than its ledger" in found()
