"""Each rule about single entries is broken by one entry that is one change away from a permitted one."""

import asyncio
from functools import partial
from operator import methodcaller as do
from pathlib import Path

import pytest

from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from tests.simulation.test_invariant_checker import CheckedLedger, refused
from tests.support.worlds.one_shard import BEGAN_MS

pytestmark = pytest.mark.virtual_time(start=1000)

AGE_MS = BEGAN_MS + 1_000_000 - 4000
"""Of what was sealed in chunk 4, whose time is 4 s."""


@pytest.fixture
async def ledger(tmp_path: Path) -> CheckedLedger:
    return CheckedLedger(tmp_path)


CONFIGURED = partial(do, "about", e.SubscriptionConfigured, balance="count")
REVOKED = partial(do, "about", e.SegmentRevoked)
REMOVED = partial(do, "about", e.ConsumerRemoved, incarnation=1)
BROKEN = {
    "a name goes to a newer instance": ("took the name of the newer", do("register", "a", 5), do("register", "a", 4)),
    "the name of a replaced instance goes to a newer one": (
        "took the name of the newer",
        do("register", "a", 5),
        REMOVED(consumer="a", incarnation=5, reason="replaced"),
        do("register", "a", 4),
    ),
    "an instance does not replace itself": ("replaced itself", do("register", "a")),
    "an instance that has left does not come back": (
        "came back after it was removed",
        REMOVED(consumer="b", reason="left"),
        do("register", "b"),
    ),
    "a subscription keeps its type": (
        "its type STREAM became QUEUE",
        CONFIGURED(subscription_type=e.SubscriptionType.QUEUE, order="none"),
    ),
    "a subscription keeps its order": (
        "the order of a STREAM became 'none'",
        CONFIGURED(subscription_type=e.SubscriptionType.STREAM, order="none"),
    ),
    "only what is read is drained": (
        "counts as drained at 0 of 2",
        do("records", 0, 1),
        do("divide", 0),
        do("drained", 0),
    ),
    "a segment moves only from a consumer that has more than its part": (
        "a holds 1 of 2 segments",
        do("read_parent"),
        do("grant", 1, "a", 2),
        do("grant", 2, "a", 3),
        REVOKED(segment=1, generation=2),
        do("release", 1, 2),
        do("grant", 1, "b", 4),
        REVOKED(segment=2, generation=3),
    ),
    "what is drained is released": (
        "is revoked instead of released",
        do("grant", 0, "a", 1),
        do("divide", 0),
        do("drained", 0),
        REVOKED(segment=0, generation=1),
    ),
    "idle segments have one weight": (
        "idle segments have weights of their own: {1: 15}",
        do("about", e.SegmentWeightsSet, weights={0: 16}),
        do("about", e.SegmentWeightsSet, weights={1: 15}),
    ),
    "a layout stays within its limit": ("t1: it has 5 segments", do("divide", 0), do("divide", 1)),
    "no leader splits behind eight undrained generations": (
        "segment 15 is split behind 8 generations",
        do("records", 0),
        *(do("divide", parent) for parent in (0, *range(1, 15, 2))),
        do("add_and_commit", e.SegmentSplit(topic_id=1, segment=15, end_offset=0, token="", reason="busy")),
    ),
}
"""What holds → what the checker says, and the steps, of which the last one breaks it."""


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
async def test_a_broken_rule_is_noticed(case: tuple, ledger: CheckedLedger) -> None:
    says, *before, last = case
    ledger.checker.rules.most_segments = 4 if says.endswith("5 segments") else 100
    for step in before:
        step(ledger)

    refused(says, lambda: last(ledger))


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
    ledger.about(e.SegmentRevoked, segment=0, generation=1)
    if thawed_after is not None:
        rules.thawed_at = asyncio.get_running_loop().time() + thawed_after
    await asyncio.sleep(seconds)
    if new_term:
        rules.check_before(ledger.state, e.TermStarted(leader_epoch=3, instance="d3"))
    removal = REMOVED(consumer="a", reason="evicted")

    if fits:
        removal(ledger)
    else:
        refused("was revoked, and released only after 26 s", lambda: removal(ledger))


async def test_positions_are_at_most_the_end_and_skip_nothing(ledger: CheckedLedger) -> None:
    ledger.read_parent()
    ledger.records(2, segment=1)
    ledger.seek(ledger.orders, ledger.billing, {1: 2})
    refused("is beyond", ledger.commit)

    ledger.seek(ledger.orders, ledger.billing, {0: 1, 1: 1})
    refused("its ancestor 0 at 1 of", ledger.commit)


@pytest.mark.parametrize(("max_age_ms", "fits"), [(None, False), (AGE_MS + 1, False), (AGE_MS, True)])
async def test_segments_are_pruned_after_their_retention(ledger: CheckedLedger, max_age_ms: float | None, fits: bool):
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
