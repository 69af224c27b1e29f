"""The whole cluster in virtual time: all invariants hold under any faults, and a planted bug is noticed.

`make simulate SEEDS=200` plays more seeds. A failed run prints its story and its seed.
"""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from shard.state.consumers import Consumers
from tests.simulation.clients import KEY_PREFIX
from tests.simulation.failure import failure_of
from tests.simulation.import_program import IMPORT_NAME
from tests.simulation.plan import BUSY, Chunks, Plan, plan_of
from tests.simulation.play import play, run_seed

pytestmark = pytest.mark.simulation


FRESH_SEEDS, BLOCK = 100, 2
"""`make nightly` plays new ones for twenty minutes. Small blocks keep both processors of CI at work to the end."""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_all_invariants_hold_in_busy_worlds(seed: int) -> None:
    """Nothing lost, nothing twice, first deliveries in order, children after their ancestors, everything delivered."""
    assert run_seed(seed, BUSY).stored["orders"]


@pytest.mark.parametrize("block", range(FRESH_SEEDS // BLOCK))
def test_all_invariants_hold_under_any_faults(block: int) -> None:
    """Every commit plays seeds of its own, and the same ones again when it is tested again."""
    words = "git", "rev-parse", "HEAD"
    commit = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    first = int(commit.stdout[:8] or "0", 16) + block * BLOCK  # from 0 on outside a working copy
    for seed in range(first, first + BLOCK):
        assert run_seed(seed).chunks


@pytest.mark.parametrize("seed", [3, 5, 6, 9])
def test_how_chunks_are_encoded_and_decoded_changes_no_story(seed: int) -> None:
    """A seed repeats exactly, or a failure could not be reproduced."""
    encodings: tuple[Chunks, ...] = ("parquet", "shared", "memory")
    stories = [play(plan_of(seed), chunks=chunks).story.rows for chunks in encodings]

    assert stories[1:] == stories[:1] * 2


def test_balancing_by_load_slices_and_devices_occur_together() -> None:
    """Otherwise the invariants would not cover weights, slices and devices together."""
    checker = run_seed(18)

    assert checker.weight_changes > 0
    assert checker.partial_grants > 0
    assert any(key.startswith(KEY_PREFIX) for _, key in checker.counters)
    assert checker.duplicate_device_records, "the broker redelivers what was not acknowledged in time"


def test_reported_backlogs_are_exact_or_called_estimates() -> None:
    """Otherwise the invariant about backlogs would not cover shared segments."""
    backlogs = run_seed(2).backlogs

    assert backlogs.exact > 0
    assert backlogs.estimated > 0


@pytest.mark.parametrize("seed", range(1, 3))
def test_what_disturbs_is_refused_and_changes_nothing_under_any_faults(seed: int) -> None:
    """Forged announcements; changed batches, also by a leader that has read a snapshot; too many requests of a user.

    The intake of devices is switched often enough that leaders change while the session is being emptied.
    """
    assert run_seed(seed, device_switches=0.3).stored["orders"]
    assert run_seed(seed, None, "forger").stored["orders"]
    assert run_seed(seed, None, "faulty").changed_batches_refused > 0
    limited = run_seed(seed, None, "quotas")
    assert limited.stored["orders"]
    assert limited.quotas_exceeded["requests_per_second"] + limited.quotas_exceeded["bytes_per_second"] > 10


def test_an_import_continues_exactly_once_while_segments_split_merge_and_are_pruned() -> None:
    """However its runs end, and however many anonymous producers the shard forgets meanwhile: many in a busy world.

    Without the automatic changes, of which odd seeds have some, the invariants would not cover them.
    """
    checker = run_seed(1, BUSY, "import")

    (position,) = (found for (_, name, _), found in checker.source_positions.items() if name == IMPORT_NAME)
    assert int(position) > 10
    assert checker.producers_removed > 10
    assert checker.automatic_changes > 0
    assert checker.pruned > 0
    assert any("compacts chunks" in row.what for row in checker.story.rows), "together with compaction"


def plan_with_evictions(seed: int) -> Plan:
    """Return the plan of a seed of which every second operation evicts a consumer."""
    plan = plan_of(seed)
    steps = [replace(step, operation="evict_consumer") if step.number % 2 else step for step in plan.steps]
    return replace(plan, steps=tuple(steps))


def test_evictions_lose_double_and_reorder_nothing_under_any_faults() -> None:
    """Consumers are evicted while they read, and while leaders change; each program that is evicted ends."""
    assert sum(len(play(plan_with_evictions(seed)).evicted_programs) for seed in range(1, 6)) > 5


@pytest.mark.nightly
def test_an_evicted_program_that_joins_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an eviction by a command counts like one for missing heartbeats."""
    remove = Consumers.remove
    monkeypatch.setattr(Consumers, "remove", lambda own, entry, at: remove(own, structs.replace(entry, token=""), at))

    failures = (failure_of(plan_with_evictions(seed)) for seed in range(1, 100))
    assert any(each is not None and "came back after a command had evicted it" in str(each.cause) for each in failures)
