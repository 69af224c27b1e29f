"""Imports of external topics, rule by rule: decisions, results and refusals."""

from typing import Any

import msgspec
import pytest

from controller.snapshots.format import encode_snapshot
from headgate.model import entries as e
from headgate.model.layout import SegmentState
from headgate.protocol import codec
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import ImportTopic, MergeSegments, Request, SegmentImport, SetTopicPolicy, SplitSegment
from headgate.views.topics import ExternalSource, TopicImportResult
from shard.requests import topic_commands as commands
from shard.requests.handlers import Decision
from shard.requests.topic_import import import_topic
from shard.steps import Steps
from shard.subscriptions.refusal import Refusal
from tests.support.whole_state import decode_snapshot
from tests.support.worlds.command_shard import CommandShard, decided


class Shard(CommandShard):
    """Imports listings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0

    def ask(self, *segments: SegmentImport, **fields: Any) -> Decision | Refusal:
        self.tokens += 1
        given = {"topic": "orders", "token": f"t{self.tokens}", "hash_bits": 4, "positions": "opaque"} | fields
        request = ImportTopic(segments=list(segments), **given)
        # As the leader gets it: encoded and decoded.
        decoded = codec.decode_request(
            codec.encode(Request(request_id=1, protocol=PROTOCOL_VERSION, client_id="c", body=request))
        ).body
        assert isinstance(decoded, ImportTopic)
        return decided(import_topic(decoded, self.state, "alice"))

    def imported(self, *segments: SegmentImport, **fields: Any) -> TopicImportResult:
        reply = self.do(self.ask(*segments, **fields))
        return reply.result

    def rejected(self, *segments: SegmentImport, **fields: Any) -> str:
        before = dict(self.state.topics)
        outcome = self.ask(*segments, **fields)
        assert isinstance(outcome, Refusal), "it was accepted"
        assert (outcome.verdict, outcome.after_barrier) == ("invalid", True)
        assert before == self.state.topics
        return outcome.reason


def seg(label: str, first: int = 0, last: int = 15, parents: str = "", sealed: bool = False, **fields: Any):
    hashes = fields.pop("hashes", (str(first), str(last)))
    return SegmentImport(segment=label, parents=list(parents), hashes=hashes, sealed=sealed, **fields)


A = seg("a", sealed=True)
B = seg("b", 0, 7, "a")
C = seg("c", 8, 15, "a")
B_SEALED = seg("b", 0, 7, "a", sealed=True)
C_SEALED = seg("c", 8, 15, "a", sealed=True)
D = seg("d", 0, 15, "bc")


@pytest.fixture
def shard() -> Shard:
    return Shard()


@pytest.fixture
def split(shard: Shard) -> Shard:
    """Return topic orders with segment a, which is split into b and c."""
    shard.imported(A, B, C, source="of 2026")
    return shard


def ids(shard: Shard) -> dict[str, int]:
    return {segment.label: number for number, segment in shard.state.topics["orders"].layout.segments.items()}


# Accepted listings


def test_the_first_import_creates_the_topic_with_parents_before_children(shard: Shard) -> None:
    answer = shard.imported(D, C_SEALED, B_SEALED, A, source="kinesis:orders")
    layout = shard.state.topics["orders"].layout

    assert {"a": 0, "b": 1, "c": 2, "d": 3} == ids(shard)
    assert ("a", "b", "c", "d") == answer.created
    assert (1, 2) == layout.segments[3].parents
    assert (1, 2) == layout.segments[0].children
    assert [3] == [segment.segment_id for segment in layout.active()]
    assert frozenset({0, 1, 2}) == layout.ancestors(3)
    assert ExternalSource(source="kinesis:orders", positions="opaque", hash_bits=4) == answer.topic.external
    assert 0 == layout.layout_epoch


def test_ranges_are_scaled_to_16_bits_and_have_at_least_one_hash(shard: Shard) -> None:
    size = 2**128
    shard.imported(
        seg("wide", 0, size // 3),
        seg("narrow", size // 3 + 1, size // 3 + 2),
        seg("rest", size // 3 + 3, size - 1),
        hash_bits=128,
    )
    ranges = {segment.label: segment.hash_range for segment in shard.state.topics["orders"].layout.segments.values()}

    assert {"wide": "0000-5554", "narrow": "5555-5555", "rest": "5555-ffff"} == ranges


def test_the_same_listing_again_changes_nothing(split: Shard) -> None:
    before = split.state.topics["orders"].layout

    assert [(), ()] == [split.imported(A, B, C, dry_run=dry_run).created for dry_run in (True, False)]
    assert split.state.topics["orders"].layout is before


def test_a_late_copy_of_an_import_is_answered_though_it_contradicts_a_later_one(split: Shard) -> None:
    split.imported(A, B_SEALED, C_SEALED, D)

    assert () == split.imported(A, B, C, token="t1").created
    assert {"a", "b", "c", "d"} == ids(split).keys()


def test_a_later_listing_seals_and_adds_segments(split: Shard) -> None:
    answer = split.imported(A, B_SEALED, C_SEALED, D)
    layout = split.state.topics["orders"].layout

    assert (("d",), ("b", "c")) == (answer.created, answer.sealed)
    assert (SegmentState.SEALED, 1, (3,)) == (layout.segments[1].state, layout.segments[1].end_offset, (3,))
    assert 1 == layout.layout_epoch


def test_a_partial_listing_keeps_unlisted_segments(split: Shard) -> None:
    split.imported(B_SEALED, seg("e", 0, 3, "b"), seg("f", 4, 7, "b"), complete=False)

    assert {"c", "e", "f"} == {segment.label for segment in split.state.topics["orders"].layout.active()}
    assert "'c' is active, has no children and is not listed" in split.rejected(
        seg("e", 0, 3, "b"), seg("f", 4, 7, "b")
    )


def test_a_dry_run_describes_the_topic_as_the_import_leaves_it(shard: Shard) -> None:
    shard.imported(seg("a", end_offset=10), B, C, positions="offsets")
    later = [seg("b", 0, 7, "a", end_offset=20), seg("c", 8, 15, "a", end_offset=0), D]

    expected = shard.imported(*later, positions="offsets", dry_run=True)

    assert shard.imported(*later, positions="offsets") == expected
    assert [10, 20, 0, 0] == [segment.next_offset for segment in expected.topic.segments]


def test_a_dry_run_of_a_first_import_creates_nothing(shard: Shard) -> None:
    assert ("a", "b", "c") == shard.imported(A, B, C, dry_run=True).created
    assert {} == shard.state.topics


def test_a_source_without_hashes_may_add_roots(shard: Shard) -> None:
    """For example a log to which partitions are added."""
    shard.imported(seg("0", hashes=None), hash_bits=0, positions="offsets")
    shard.imported(seg("0", hashes=None), seg("1", hashes=None), hash_bits=0, positions="offsets")

    assert {"0": 0, "1": 1} == ids(shard)


def test_a_parent_that_its_source_no_longer_lists_stays_undrained(split: Shard) -> None:
    """Kinesis lists a closed shard until its records expire; that does not make it drained."""
    answer = split.imported(B_SEALED, C_SEALED, D)

    assert () == answer.expired_parents
    assert frozenset({0, 1, 2}) == split.state.topics["orders"].layout.ancestors(3)


def test_an_unlisted_active_parent_is_sealed_when_its_children_appear(split: Shard) -> None:
    assert ("b", "c") == split.imported(D).sealed
    assert (1, 2) == split.state.topics["orders"].layout.segments[3].parents


def test_the_first_import_may_declare_unlisted_parents_expired(shard: Shard) -> None:
    assert "'a', which is not listed" in shard.rejected(B, C)

    assert ("a",) == shard.imported(B, C, missing_parents="expired").expired_parents
    assert () == shard.state.topics["orders"].layout.segments[0].parents


def test_children_of_a_parent_that_was_never_listed_wait_for_the_last_known_ancestor(split: Shard) -> None:
    """Between two listings b was split into x and y, c into z and w, and y and z were merged; b, c, y and z expired."""
    x, v, w = seg("x", 0, 3, "b", sealed=True), seg("v", 4, 11, "yz"), seg("w", 12, 15, "c")
    listing = seg("u", 0, 3, "x"), x, v, w

    assert "'y', which is not listed" in split.rejected(*listing, missing_parents="expired", complete=False)
    answer = split.imported(*listing, missing_parents="expired")

    assert (("b", "c"), ("y", "z")) == (answer.sealed, answer.expired_parents)
    found, known = split.state.topics["orders"].layout, ids(split)
    assert (known["b"], known["c"]) == found.segments[known["v"]].parents
    assert () == split.imported(*listing, missing_parents="expired").created


def test_a_child_of_a_parent_that_was_never_listed_waits_for_all_that_had_its_hashes(split: Shard) -> None:
    """Between two listings b was split into x and y, and y was merged with c. A partial listing may lack y."""
    listing = B_SEALED, C_SEALED, seg("x", 0, 3, "b"), seg("v", 4, 15, "cy")

    assert "'y', which is not listed" in split.rejected(*listing, missing_parents="expired", complete=False)
    split.imported(*listing, missing_parents="expired")
    assert {1, 2} == set(split.state.topics["orders"].layout.segments[ids(split)["v"]].parents)


def test_a_pruned_segment_is_not_added_again(split: Shard) -> None:
    split.apply(e.SegmentsPruned(topic_id=split.state.topics["orders"].topic_id, segments=[0]))

    assert () == split.imported(A, B, C).created
    split.imported(A, B_SEALED, C_SEALED, D)
    assert {"b": 1, "c": 2, "d": 3} == ids(split)
    split.apply(e.SegmentsPruned(topic_id=split.state.topics["orders"].topic_id, segments=[1, 2]))
    split.imported(seg("d", sealed=True, parents="bc"), seg("e", parents="d"))
    assert {"d": 3, "e": 4} == ids(split)


def test_a_pruned_segment_is_not_active_again(split: Shard) -> None:
    split.apply(e.SegmentsPruned(topic_id=split.state.topics["orders"].topic_id, segments=[0]))

    assert "segment 'a' is active; it was sealed, and is pruned" in split.rejected(seg("a"), B, C)


def test_a_new_segment_may_have_a_pruned_parent_beside_another_one(shard: Shard) -> None:
    first, second = seg("p", hashes=None, sealed=True), seg("q", hashes=None)
    shard.imported(first, second, hash_bits=0)
    shard.apply(e.SegmentsPruned(topic_id=shard.state.topics["orders"].topic_id, segments=[0]))

    shard.imported(first, seg("q", hashes=None, sealed=True), seg("r", parents="pq", hashes=None), hash_bits=0)

    assert (1,) == shard.state.topics["orders"].layout.segments[2].parents


def test_offsets_come_from_the_listing(shard: Shard) -> None:
    shard.imported(seg("a", end_offset=1041, sealed=True), B, C, positions="offsets")
    topic = shard.state.topics["orders"]

    assert (1041, 1041) == (topic.layout.segments[0].end_offset, topic.tails[0].next_offset)
    assert 0 == topic.tails[1].next_offset


# Rejected listings

CONTRADICTIONS = {
    "another range": ([A, seg("b", 0, 6, "a"), seg("c", 7, 15, "a")], {}, "'b' has hashes 0 to 6; it had 0 to 7"),
    "another parent": ([A, B, seg("c", 8, 15, "b")], {}, "'c' has a parent that it did not have before: b"),
    "a new parent": (
        [A, B, seg("x", 8, 15, "a", sealed=True), seg("c", 8, 15, "x")],
        {},
        "'c' has a parent that it did not have before: x",
    ),
    "active again": ([seg("a"), B, C], {}, "'a' is active; it was sealed at 1"),
    "vanished while active": ([A, B], {}, "'c' is active, has no children and is not listed"),
    "a new root": ([A, B, C_SEALED, seg("x", 8, 15)], {}, "'x' is new and has no parents"),
    "an unknown parent": (
        [A, B, C_SEALED, seg("x", 8, 15, "y")],
        {"missing_parents": "expired", "complete": False},
        "'x' has the parent 'y', which is not listed; if the source removed it before it was imported",
    ),
    "a child of an active one": ([A, B, C, seg("x", 0, 7, "b")], {}, "'b' is active, but has the child 'x'"),
    "other positions": ([seg("a", end_offset=1), B, C], {"positions": "offsets"}, "it has opaque positions"),
    "another stream": ([A, B, C], {"source": "of 2027"}, "its source is 'of 2026', and this listing is of 'of 2027'"),
    "other bits": ([A, B, C], {"hash_bits": 5}, "hashes of 4 bits"),
}


@pytest.mark.parametrize(("segments", "fields", "reason"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_a_listing_that_contradicts_the_topic_is_refused(
    segments: list[SegmentImport], fields: dict[str, Any], reason: str, split: Shard
) -> None:
    assert reason in split.rejected(*segments, **fields)


def test_the_end_offset_of_a_sealed_segment_cannot_change(shard: Shard) -> None:
    shard.imported(seg("a", end_offset=10), B, C, positions="offsets")

    assert "'a' is sealed at 11; it was sealed at 10" in shard.rejected(
        seg("a", end_offset=11), B, C, positions="offsets"
    )


def test_an_unlisted_parent_must_be_listed_where_positions_are_offsets(shard: Shard) -> None:
    shard.imported(seg("a", end_offset=10), B, C, positions="offsets")

    assert "'b' has children but is not listed" in shard.rejected(
        C, seg("d", 0, 7, "b"), positions="offsets", complete=False
    )


def test_an_end_offset_below_an_acknowledged_one_is_refused(shard: Shard) -> None:
    shard.imported(seg("a", end_offset=10), B, C, positions="offsets")
    topic_id = shard.state.topics["orders"].topic_id
    shard.apply(
        e.SubscriptionCreated(
            topic_id=topic_id,
            subscription_id=9,
            subscription="billing",
            subscription_type="STREAM",
            order="strict",
            positions={},
        ),
        e.RecordsAcknowledged(
            topic_id=topic_id, subscription_id=9, seek_generation=0, ranges=[e.AcknowledgedRange(1, 0, 100)]
        ),
    )
    later = [seg("a", end_offset=10), C, seg("d", 0, 7, "b")]

    reason = shard.rejected(*later, seg("b", 0, 7, "a", end_offset=90), positions="offsets")
    assert "'b' ends at 90, but subscription 'billing' has acknowledged it to 100" in reason
    assert ("b",) == shard.imported(*later, seg("b", 0, 7, "a", end_offset=100), positions="offsets").sealed
    # Nothing is acknowledged in c, so it may end without a record.
    latest = [seg("b", 0, 7, "a", end_offset=100), seg("c", 8, 15, "a", end_offset=0)]
    children = [seg("d", 0, 7, "b"), seg("e", 8, 15, "c")]
    assert ("c",) == shard.imported(*latest, *children, positions="offsets", complete=False).sealed


def test_an_import_does_not_replace_a_stored_topic(shard: Shard) -> None:
    shard.apply(e.TopicCreated(topic_id=1, topic="orders", segments=1, token="x"))

    assert "headgate stores its records" in shard.rejected(A, B, C)


def test_the_number_of_segments_of_a_topic_is_limited(shard: Shard) -> None:
    roots = [seg(f"r{n}", hashes=None) for n in range(4096)]
    shard.imported(*roots, hash_bits=0)

    one_more = seg("one-more", hashes=None)
    assert "4097 segments; the limit is 4096" in shard.rejected(one_more, hash_bits=0, complete=False)


@pytest.mark.parametrize("command", ["split", "merge"])
def test_splits_and_merges_of_external_topics_are_refused(command: str, split: Shard) -> None:
    about = {"topic": "orders", "token": "x"}
    if command == "split":
        outcome = commands.split_segment(SplitSegment(segment=1, **about), split.state)
    else:
        outcome = commands.merge_segments(MergeSegments(segments=(1, 2), **about), split.state)

    assert ("invalid", True) == (outcome.verdict, outcome.after_barrier)
    assert "split or merge at its source" in outcome.reason


def test_automatic_splits_and_merges_of_external_topics_are_refused(split: Shard) -> None:
    request = SetTopicPolicy(topic="orders", token="x", policy=e.TopicPolicy(auto_split=True))
    outcome = commands.set_topic_policy(request, split.state)

    assert isinstance(outcome, Refusal)
    changed = msgspec.structs.replace(request, policy=e.TopicPolicy(max_age_ms=5))
    assert isinstance(commands.set_topic_policy(changed, split.state), Decision)


def test_a_snapshot_holds_the_source_with_hashes_of_128_bits(shard: Shard) -> None:
    top = 2**128 - 1
    shard.imported(seg("a", 0, top, sealed=True), seg("b", 0, top, "a"), hash_bits=128)
    shard.apply(e.SegmentsPruned(topic_id=shard.state.topics["orders"].topic_id, segments=[0]))
    data = encode_snapshot(shard.state, written_at_ms=0)
    restored = decode_snapshot(data, shard=0, chunk=shard.state.chunk)

    assert shard.state.topics["orders"] == restored.topics["orders"]
    assert {"a"} == restored.topics["orders"].external.pruned


# Decisions in steps


def chain(count: int, name: type[str] = str) -> list[SegmentImport]:
    """Return ``count`` segments without hashes, each the child of the one before; the last is active."""
    return [
        SegmentImport(segment=name(f"s{n:05}"), parents=[name(f"s{n - 1:05}")] if n else [], sealed=n < count - 1)
        for n in range(count)
    ]


def listing(*segments: SegmentImport, token: str = "again") -> ImportTopic:
    return ImportTopic(topic="orders", token=token, segments=list(segments), positions="opaque")


class CountedName(str):
    """A name that counts how often a set or a dict asks for its hash."""

    __slots__ = ()
    hashed = 0

    def __hash__(self) -> int:
        CountedName.hashed += 1
        return super().__hash__()


def lookups_of_an_update(count: int) -> int:
    shard = Shard()
    shard.do(decided(import_topic(listing(*chain(count, CountedName)), shard.state, "alice")))
    update = listing(*chain(count + 1, CountedName), token="next")
    before = CountedName.hashed
    assert (f"s{count:05}",) == shard.do(decided(import_topic(update, shard.state, "alice"))).result.created
    return CountedName.hashed - before


def test_the_cost_of_an_update_is_linear_in_the_segments() -> None:
    assert lookups_of_an_update(400) < 2.2 * lookups_of_an_update(200)


def test_a_step_of_an_import_costs_two_for_each_listed_segment() -> None:
    assert 6 == next(import_topic(listing(*chain(3)), Shard().state, "alice"))


def begin(steps: Steps[Any], count: int) -> None:
    for _ in range(count):
        next(steps)


BETWEEN_TWO_STEPS = pytest.mark.parametrize("taken", range(1, 9), ids="after step {}".format)


@BETWEEN_TWO_STEPS
def test_a_plan_for_a_former_layout_is_made_again(shard: Shard, taken: int) -> None:
    shard.do(decided(import_topic(listing(*chain(2)), shard.state, "alice")))
    steps = import_topic(listing(*chain(4), token="late"), shard.state, "alice")
    begin(steps, taken)
    shard.do(decided(import_topic(listing(*chain(3), token="first"), shard.state, "alice")))

    assert ("s00003",) == shard.do(decided(steps)).result.created
    assert {"s00000": 0, "s00001": 1, "s00002": 2, "s00003": 3} == ids(shard)


@BETWEEN_TWO_STEPS
def test_a_segment_that_was_pruned_between_two_steps_is_a_former_parent(shard: Shard, taken: int) -> None:
    """Its hashes are forgotten, and those of the other parent are not all of the child's."""
    shard.imported(A, B, C)
    steps = import_topic(msgspec.structs.replace(listing(A, B_SEALED, C_SEALED, D), hash_bits=4), shard.state, "alice")
    begin(steps, taken)
    shard.imported(A, B_SEALED, C_SEALED, D)
    shard.apply(e.SegmentsPruned(topic_id=1, segments=[0, 1]))

    assert () == shard.do(decided(steps)).result.created


@BETWEEN_TWO_STEPS
def test_a_topic_that_was_deleted_between_two_steps_is_created_again(shard: Shard, taken: int) -> None:
    shard.do(decided(import_topic(listing(*chain(2)), shard.state, "alice")))
    steps = import_topic(listing(*chain(3), token="late"), shard.state, "alice")
    begin(steps, taken)
    shard.apply(e.TopicDeleted(topic_id=shard.state.topics["orders"].topic_id, token=""))

    assert ("s00000", "s00001", "s00002") == shard.do(decided(steps)).result.created


@BETWEEN_TWO_STEPS
def test_a_late_copy_does_not_create_a_topic_that_was_created_and_deleted_between_two_steps(
    shard: Shard, taken: int
) -> None:
    late = import_topic(listing(*chain(2)), shard.state, "alice")
    begin(late, taken)
    shard.do(decided(import_topic(listing(*chain(2)), shard.state, "alice")))
    shard.apply(e.TopicDeleted(topic_id=shard.state.topics["orders"].topic_id, token=""))

    assert "has been deleted since" in decided(late).reason


@BETWEEN_TWO_STEPS
def test_an_acknowledgement_between_two_steps_counts(shard: Shard, taken: int) -> None:
    active = SegmentImport(segment="s")
    shard.do(decided(import_topic(msgspec.structs.replace(listing(active), positions="offsets"), shard.state, "alice")))
    fields: dict[str, Any] = {"topic_id": 1, "subscription_id": 2}
    shard.apply(
        e.SubscriptionCreated(**fields, subscription="s", subscription_type="STREAM", order="strict", positions={})
    )
    ended = listing(msgspec.structs.replace(active, end_offset=5), SegmentImport(segment="t", parents=["s"]))
    steps = import_topic(msgspec.structs.replace(ended, positions="offsets", token="end"), shard.state, "alice")
    begin(steps, taken)
    shard.apply(e.RecordsAcknowledged(**fields, seek_generation=0, ranges=[e.AcknowledgedRange(0, 0, 6)]))

    outcome = decided(steps)
    assert "ends at 5, but subscription 's' has acknowledged it to 6" in outcome.reason
