"""Facts become aggregates, and aggregates of aggregates say the same. Whole results are compared."""

import random
from collections import defaultdict

import pyarrow as pa
import pytest

from drain.backlog.aggregates import FACTS, UnknownTypeError, aggregate, contributions, slots_of
from drain.backlog.merge import MergedRow, StateRow, index_slot, merge_rows, merged_rows


def fact(kind, **columns):
    return {"shard": 0, "topic_id": 1} | columns | {"fact": kind}


def aggregated(*rows):
    return aggregate(contributions(pa.Table.from_pylist(list(rows), schema=FACTS)))


def merged(aggregates):
    """Return the rows of shard 0 in ``aggregates``, sorted."""
    by_shard = merged_rows(aggregates)
    assert by_shard.keys() <= {0}
    return in_order(by_shard.get(0, []))


def in_order(rows):
    return sorted(rows, key=repr)


def of_segment(segment, **columns):
    return StateRow(1, None, segment, **columns)


def counted(*rows):
    """Return ``rows`` as input of a merge, without flags."""
    return in_order([MergedRow(row) for row in rows])


def test_records_are_counted_per_segment_and_index_slot_with_the_last_timestamp():
    """Offsets 1, 5 and 9 share a slot. Their timestamps need not rise with them."""
    found = aggregated(
        *(
            fact("record", segment=0, offset=offset, size_bytes=size, timestamp_ms=ms)
            for offset, size, ms in ((0, 5, 100), (1, 7, 101), (9, 1, 150), (5, 2, 160))
        ),
        fact("record", segment=1, offset=0, size_bytes=1, timestamp_ms=7),
    )

    assert merged(found) == counted(
        of_segment(0, records=1, size_bytes=5, end_offset=1, timestamp_index=((0, 100),)),
        of_segment(0, records=3, size_bytes=10, end_offset=10, timestamp_index=((9, 150),)),
        of_segment(1, records=1, size_bytes=1, end_offset=1, timestamp_index=((0, 7),)),
    )


def test_both_ways_to_compute_an_index_slot_agree():
    offsets = [0, 1, 2, 3, 4, 6, 12, 1023, 1024, 3 * 2**40, 2**62, 2**62 + 2**61, 2**63 - 2]

    assert [index_slot(offset) for offset in offsets] == slots_of(pa.array(offsets)).to_pylist()


def test_rows_without_a_known_fact_are_left_out():
    """They hold an entry's body, or a fact without an offset that a later version states."""
    found = aggregated({"shard": 0, "fact": None}, fact(None, segment=0, size_bytes=9), fact("renamed", segment=0))

    assert (len(found), merged(found)) == (0, [])


def test_ranges_that_touch_become_one():
    def acknowledged(first, end):
        return fact("acknowledged", subscription_id=2, segment=3, offset=first, end_offset=end, seek_generation=0)

    found = aggregated(*(acknowledged(*each) for each in ((3, 5), (0, 3), (4, 9), (11, 12), (12, 14), (20, 20))))

    assert merged(found) == counted(
        StateRow(1, 2, 3, position=9), StateRow(1, 2, 3, above=((11, 14),)), StateRow(1, 2, 3)
    )


def covered(rows):
    """Return {bucket: offsets} for rows of one generation."""
    found = defaultdict(set)
    for row in rows:
        found[row.bucket].update(*(range(first, end) for first, end in ((0, row.position), *row.above)))
    return found


def random_facts(seed):
    """Return facts of two subscriptions in two segments, with many equal or adjacent ranges."""
    rng = random.Random(seed)

    def random_key():
        return {
            "subscription_id": rng.choice((2, 3)),
            "segment": rng.choice((0, 1)),
            "seek_generation": rng.choice((0, 0, 1)),
        }

    rows = [
        fact(
            "acknowledged", **random_key(), bucket=rng.choice((None, None, 5)), offset=first, end_offset=first + length
        )
        for first, length in ((rng.choice((0, rng.randrange(60))), rng.randrange(5)) for _ in range(150))
    ]
    rows += [fact("position", **random_key(), offset=rng.randrange(20)) for _ in range(3)]
    rows += [fact("record", segment=rng.choice((0, 1)), offset=n, size_bytes=n, timestamp_ms=n) for n in range(70)]
    rows += [fact("created", segment=0), fact("created", segment=1), fact("sealed", segment=1, end_offset=70)]
    rows += [fact("subscribed", subscription_id=n, subscription_type="QUEUE") for n in (2, 3)]
    rng.shuffle(rows)
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_aggregates_of_parts_and_of_all_equal_counting_offset_by_offset(seed):
    rows = random_facts(seed)
    parts = pa.concat_tables([aggregated(*rows[first::3]) for first in range(3)])
    found = [merged(each) for each in (aggregated(*rows), aggregate(parts), parts)]

    expected = defaultdict(lambda: defaultdict(set))
    for row in rows:
        if row["fact"] in {"acknowledged", "position"}:
            first, end = (0, row["offset"]) if row["fact"] == "position" else (row["offset"], row["end_offset"])
            key = (row["subscription_id"], row["segment"], row["seek_generation"])
            expected[key][row.get("bucket")].update(range(first, end))
    for items in found:
        assert merge_rows(items) == merge_rows(found[0])
        by_key = defaultdict(list)
        for item in items:
            if item.row.subscription_id is not None and item.row.segment is not None:
                by_key[item.row.subscription_id, item.row.segment, item.row.seek_generation].append(item.row)
        assert {key: covered(rows) for key, rows in by_key.items()} == expected
    assert len(found[1]) < len(found[2])


def test_creations_and_removals_are_flagged():
    found = aggregated(
        fact("created", segment=0),
        fact("sealed", segment=0, end_offset=6),
        fact("pruned", segment=1),
        fact("subscribed", subscription_id=2, subscription_type="QUEUE"),
        fact("subscribed", subscription_id=3, subscription_type=""),
        fact("unsubscribed", subscription_id=4),
        fact("topic_deleted", topic_id=9),
    )

    assert merged(found) == in_order(
        [
            MergedRow(of_segment(0), present=True),
            MergedRow(of_segment(0, sealed_end_offset=6)),
            MergedRow(of_segment(1), removed=True),
            MergedRow(StateRow(1, 2, None, subscription_type="QUEUE"), present=True),
            MergedRow(StateRow(1, 3, None, subscription_type=""), present=True),
            MergedRow(StateRow(1, 4, None), removed=True),
            MergedRow(StateRow(9, None, None), removed=True),
        ]
    )


def test_an_unsupported_subscription_type_is_refused_with_its_name():
    with pytest.raises(UnknownTypeError, match="does not know the subscription type SHARED"):
        aggregated(fact("subscribed", subscription_id=2, subscription_type="SHARED"))
