"""Each rule about single entries is broken by one entry that is one change away from a permitted one."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.ledger.paths import chunk_path
from headgate.model import entries as e
from tests.simulation.test_invariant_checker import CheckedLedger, refused
from tests.support.worlds.one_shard import BEGAN_MS

pytestmark = pytest.mark.looptime(start=1000)

AGE_MS = BEGAN_MS + 1_000_000 - 4000
"""Of what was sealed in chunk 4, whose time is 4 s."""


@pytest.fixture
async def ledger(tmp_path: Path) -> CheckedLedger:
    return CheckedLedger(tmp_path)


def add(ledger: CheckedLedger, entry: type[e.AnyEntry], **fields: object) -> Callable[[], object]:
    """Return what writes a chunk with an entry about the subscription."""

    def write() -> None:
        ledger.add(entry(topic_id=ledger.orders, subscription_id=ledger.billing, **fields))  # type: ignore[call-arg]
        ledger.commit()

    return write


async def test_a_name_goes_to_a_newer_instance_only(ledger: CheckedLedger) -> None:
    ledger.register("a", incarnation=5)
    ledger.register("a", incarnation=4)

    refused("took the name of the newer", ledger.commit)


async def test_the_name_of_a_replaced_instance_goes_to_a_newer_one_only(ledger: CheckedLedger) -> None:
    ledger.register("a", incarnation=5)
    ledger.commit()
    add(ledger, e.ConsumerRemoved, consumer="a", incarnation=5, reason="replaced")()
    ledger.register("a", incarnation=4)

    refused("took the name of the newer", ledger.commit)


async def test_an_instance_does_not_replace_itself(ledger: CheckedLedger) -> None:
    ledger.register("a")

    refused("replaced itself", ledger.commit)


async def test_an_instance_that_has_left_does_not_come_back(ledger: CheckedLedger) -> None:
    add(ledger, e.ConsumerRemoved, consumer="b", incarnation=1, reason="left")()
    ledger.register("b")

    refused("came back after it was removed", ledger.commit)


@pytest.mark.parametrize(
    ("kind", "order", "text"),
    [("QUEUE", "none", "its type STREAM became QUEUE"), ("STREAM", "none", "the order of a STREAM became 'none'")],
)
async def test_a_subscription_keeps_type_and_order(ledger: CheckedLedger, kind: str, order: str, text: str) -> None:
    fields = {"subscription_type": e.SubscriptionType(kind), "order": order, "balance": "count"}

    refused(text, add(ledger, e.SubscriptionConfigured, **fields))


async def test_only_what_is_read_is_drained(ledger: CheckedLedger) -> None:
    ledger.records(0, 1)
    ledger.split(ledger.orders, 0)
    ledger.commit()

    refused("counts as drained at 0 of 2", lambda: ledger.drained(0))


async def test_a_segment_moves_only_from_a_consumer_that_has_more_than_its_part(ledger: CheckedLedger) -> None:
    ledger.read_parent()
    ledger.grant(1, "a", 2)
    ledger.grant(2, "a", 3)
    add(ledger, e.SegmentRevoked, segment=1, generation=2)()
    ledger.release(1, 2)
    ledger.grant(1, "b", 4)

    refused("a holds 1 of 2 segments", add(ledger, e.SegmentRevoked, segment=2, generation=3))


async def test_what_is_drained_is_released(ledger: CheckedLedger) -> None:
    ledger.grant(0, "a", 1)
    ledger.split(ledger.orders, 0)
    ledger.commit()
    ledger.drained(0)

    refused("is revoked instead of released", add(ledger, e.SegmentRevoked, segment=0, generation=1))


@pytest.mark.parametrize(
    ("seconds", "new_term", "thawed_after", "fits"),
    [
        (24, False, None, True),
        (26, False, None, False),
        (26, True, None, True),
        (26, False, 17, True),
        (26, False, 15, False),
    ],
    ids=str,
)
async def test_a_revocation_ends_in_time_unless_the_leader_changes_or_is_frozen(
    ledger: CheckedLedger, seconds: float, new_term: bool, thawed_after: float | None, fits: bool
) -> None:
    rules = ledger.checker.rules
    rules.revoke_seconds = 15
    rules.check_before(ledger.state, e.TermStarted(leader_epoch=2, instance="d2"))
    ledger.grant(0, "a", 1)
    add(ledger, e.SegmentRevoked, segment=0, generation=1)()
    if thawed_after is not None:
        rules.thawed_at = asyncio.get_running_loop().time() + thawed_after
    await asyncio.sleep(seconds)
    if new_term:
        rules.check_before(ledger.state, e.TermStarted(leader_epoch=3, instance="d3"))
    removal = add(ledger, e.ConsumerRemoved, consumer="a", incarnation=1, reason="evicted")

    if fits:
        removal()
    else:
        refused("was revoked, and released only after 26 s", removal)


async def test_idle_segments_have_one_weight(ledger: CheckedLedger) -> None:
    add(ledger, e.SegmentWeightsSet, weights={0: 16})()
    wrong = add(ledger, e.SegmentWeightsSet, weights={1: 15})

    refused("idle segments have weights of their own: {1: 15}", wrong)


async def test_positions_are_at_most_the_end_and_skip_nothing(ledger: CheckedLedger) -> None:
    ledger.read_parent()
    ledger.records(2, segment=1)
    ledger.seek(ledger.orders, ledger.billing, {1: 2})
    refused("is beyond", ledger.commit)

    ledger.seek(ledger.orders, ledger.billing, {0: 1, 1: 1})
    refused("its ancestor 0 at 1 of", ledger.commit)


@pytest.mark.parametrize(("max_age_ms", "fits"), [(None, False), (AGE_MS + 1, False), (AGE_MS, True)])
async def test_segments_are_pruned_after_their_retention(
    ledger: CheckedLedger, max_age_ms: float | None, fits: bool
) -> None:
    ledger.read_parent()
    ledger.checker.rules.max_age_ms = max_age_ms
    ledger.prune(ledger.orders, 0)

    if fits:
        ledger.commit()
    else:
        refused(f"was pruned {AGE_MS} ms after it was sealed", ledger.commit)


async def test_chunks_are_deleted_after_their_compaction_and_never_the_first_of_a_term(ledger: CheckedLedger) -> None:
    for _ in range(3):
        ledger.barrier()
    checker = ledger.checker

    refused("is the first of a term", lambda: checker.check_deletion(chunk_path(0, 1)))
    refused("those up to 0 are compacted", lambda: checker.check_deletion(chunk_path(0, 2)))
    checker.rules.manifest_written(
        "manifests/shard=0000/000000000001-000000000003.json", b'{"written_at_ms":1767226600000}'
    )
    checker.check_deletion(chunk_path(0, 2))
    checker.rules.compaction_seconds = 1.0
    refused("those up to 0 are compacted", lambda: checker.check_deletion(chunk_path(0, 2)))
