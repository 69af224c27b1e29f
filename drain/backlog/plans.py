"""The counting itself: what new facts come to, as functions DataFrame → DataFrame.

There is no session here, no path, no setting and nothing that runs: a plan goes out for what came in.

What places, parts and sums are is said in drain.backlog.sums. Facts of one part are added up by sums and maxima of whole
numbers alone, under a key without nulls. That, and only that, is what Spark makes into one loop over the columns with a
quick hash table in it: a null in the key, or a string or a list among the sums, costs three times as much for every
fact, however few have it. For the same reason a fact with an offset is told by which columns it sets (headgate.ledger.chunk),
and its name is looked at only where there is no offset.

Adding up has one shuffle, of a row for each part and task. Ranges acknowledged out of order are parts of their own, and
there may be as many as facts; so `summed_up_to` stops at a number of rows, and says that it did. Then `joined` makes
one row of ranges that touch, by windows over sorted rows, at the price of a second shuffle.

The plans are SQL, because each call on a DataFrame is a round trip to the JVM: written with Columns, the same plan took
as long to put together as to carry out.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from drain.backlog.sums import NONE, NOTHING, PLACE, POSITION, PRESENT, REMOVED, SEALED, TYPES
from drain.backlog.timestamp_index import MARK_SQL

ROW: Final = "row"
"""The column in which `summed_up_to` numbers the rows of each task."""

_TYPE: Final = f"""
    CASE {" ".join(f"WHEN subscription_type = '{name}' THEN {number}L" for number, name in enumerate(TYPES))}
         WHEN subscription_type IS NOT NULL
         THEN raise_error(concat('a subscription of type ', subscription_type, ', which this version does not know'))
         END"""

_CONTRIBUTIONS: Final = f"""
    SELECT shard,
           coalesce(topic_id, {NONE}L) AS topic_id,
           coalesce(subscription_id, {NONE}L) AS subscription_id,
           coalesce(segment, {NONE}L) AS segment,
           coalesce(bucket, {NONE}L) AS bucket,
           coalesce(seek_generation, 0L) AS seek_generation,
           CASE WHEN offset IS NULL THEN
                    CASE fact WHEN 'created' THEN {PRESENT}L
                              WHEN 'subscribed' THEN {PRESENT}L
                              WHEN 'sealed' THEN {SEALED}L
                              WHEN 'pruned' THEN {REMOVED}L
                              WHEN 'topic_deleted' THEN {REMOVED}L
                              WHEN 'unsubscribed' THEN {REMOVED}L
                              ELSE {NOTHING}L END
                WHEN subscription_id IS NULL THEN {MARK_SQL}
                WHEN end_offset IS NULL THEN {POSITION}L
                ELSE offset END AS part,
           coalesce(end_offset, offset, {_TYPE}) AS reach,
           subscription_id IS NULL AND offset IS NOT NULL AS is_record,
           1L AS records, size_bytes, timestamp_ms
    FROM {{facts}}
"""  # noqa: S608 - nothing in it comes from outside

_AGAIN: Final = f"""
    SELECT shard, topic_id,
           coalesce(subscription_id, {NONE}L) AS subscription_id,
           coalesce(segment, {NONE}L) AS segment,
           coalesce(bucket, {NONE}L) AS bucket,
           coalesce(seek_generation, 0L) AS seek_generation,
           stated.part, stated.reach, mark IS NOT NULL AS is_record, records, size_bytes, timestamp_ms
    FROM (
        SELECT *, explode(filter(concat(
            array(
                CASE WHEN mark IS NOT NULL THEN named_struct('part', mark, 'reach', end_offset - 1) END,
                CASE WHEN present THEN named_struct('part', {PRESENT}L, 'reach', {_TYPE}) END,
                CASE WHEN removed THEN named_struct('part', {REMOVED}L, 'reach', CAST(NULL AS BIGINT)) END,
                CASE WHEN sealed_end_offset IS NOT NULL
                     THEN named_struct('part', {SEALED}L, 'reach', sealed_end_offset) END,
                CASE WHEN subscription_id IS NOT NULL AND segment IS NOT NULL
                     THEN named_struct('part', if(reset, {POSITION}L, 0L), 'reach', position) END
            ),
            transform(above, range -> named_struct('part', range.first_offset, 'reach', range.end_offset))
        ), stated -> stated IS NOT NULL)) AS stated
        FROM {{merged}}
    )
"""  # noqa: S608 - as above

_SUMMED: Final = f"""
    SELECT {", ".join(PLACE)}, part,
           sum(records) AS records,
           sum(size_bytes) FILTER (WHERE is_record) AS size_bytes,
           max(reach) AS reach,
           max_by(timestamp_ms, reach) FILTER (WHERE is_record) AS timestamp_ms
    FROM {{contributions}}
    GROUP BY {", ".join(PLACE)}, part
"""  # noqa: S608 - as above

# In one partition there is nothing to shuffle; said here, it spares the two round trips that it takes on a frame.
_IN_ONE: Final = "(SELECT /*+ COALESCE(1) */ * FROM {facts})"
_OF_FEW: Final = _SUMMED.replace("{contributions}", f"({_CONTRIBUTIONS})").replace("{facts}", _IN_ONE)

# The lower 33 bits of that number are the row's own within its task, from 0.
_UP_TO: Final = f"""
    SELECT * FROM (SELECT *, monotonically_increasing_id() & 8589934591L AS {ROW} FROM ({_SUMMED}))
    WHERE {ROW} <= {{limit}}
"""  # noqa: S608 - as above

# A range belongs to the stretch before it unless it begins behind all that ends there. A POSITION is one from 0, and
# the first of its place. Whatever is not about a subscription in a segment stays apart by its part.
_SORTED: Final = f"PARTITION BY {', '.join(PLACE)}, apart ORDER BY part ROWS BETWEEN UNBOUNDED PRECEDING AND"
_JOINED: Final = f"""
    WITH summed AS (
        SELECT *, CASE WHEN subscription_id = {NONE} OR segment = {NONE} THEN part END AS apart FROM ({_SUMMED})
    ),
    begun AS (
        SELECT *, CASE WHEN part > max(reach) OVER ({_SORTED} 1 PRECEDING) THEN 1L ELSE 0L END AS begins FROM summed
    ),
    numbered AS (SELECT *, sum(begins) OVER ({_SORTED} CURRENT ROW) AS stretch FROM begun)
    SELECT {", ".join(PLACE)}, min(part) AS part, sum(records) AS records, sum(size_bytes) AS size_bytes,
           max(reach) AS reach, max_by(timestamp_ms, reach) AS timestamp_ms
    FROM numbered GROUP BY {", ".join(PLACE)}, apart, stretch
"""  # noqa: S608 - as above


def contributions(facts: DataFrame) -> DataFrame:
    """Return what each fact (rows of schemas.FACTS) adds to its part. An unknown type of subscription fails the run."""
    return facts.sparkSession.sql(_CONTRIBUTIONS, facts=facts)


def contributions_again(merged: DataFrame) -> DataFrame:
    """Return what rows that were merged before (schemas.MERGED) add to theirs."""
    return merged.sparkSession.sql(_AGAIN, merged=merged)


def summed(facts: DataFrame) -> DataFrame:
    """Return one row (SUMS) per part of facts that are known to be few, without a shuffle."""
    return facts.sparkSession.sql(_OF_FEW, facts=facts)


def summed_up_to(limit: int, contributions: DataFrame) -> DataFrame:
    """Return one row (SUMS, and ROW) per part; a task that returns a row number ``limit`` may have more of them."""
    return contributions.sparkSession.sql(_UP_TO, contributions=contributions, limit=limit)


def joined(contributions: DataFrame) -> DataFrame:
    """Return one row (SUMS) per part, and one for all ranges of a place that touch or overlap."""
    return contributions.sparkSession.sql(_JOINED, contributions=contributions)
