"""The counting itself: what new facts come to, as functions DataFrame → DataFrame.

There is no session here, no path, no setting and nothing that runs: a plan goes out for what came in.

What places, parts and sums are is said in drain.backlog.sums. Facts of one kind are added up by sums and maxima of
whole numbers alone, under a key without nulls. That, and only that, is what Spark makes into one loop over the columns
with a quick hash table in it: a null in the key, or a string or a list among the sums, costs three times as much for
every fact, however few have it. For the same reason a fact with an offset is told by which columns it sets
(headgate.ledger.chunk), and its name is looked at only where there is no offset.

Adding up has one shuffle, of a row for each kind and task. Ranges acknowledged out of order are parts of their own, and
there may be as many as facts; so `aggregate_limited` stops at a number of rows, and says that it did. Then
`aggregate_joined` makes one row of ranges that touch, by windows over sorted rows, at the price of a second shuffle.

The plans are SQL, because each call on a DataFrame is a round trip to the JVM: written with Columns, the same plan took
as long to put together as to carry out.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from drain.backlog.sums import AGGREGATE_KEY, NO_FACT, NO_ID, POSITION, PRESENT, REMOVED, SEALED, SUBSCRIPTION_TYPES
from drain.backlog.timestamp_index import INDEX_SLOT_SQL

ROW_NUMBER: Final = "row"
"""The column in which `aggregate_limited` numbers the rows of each task."""

_TYPE: Final = f"""
    CASE {
    " ".join(f"WHEN subscription_type = '{name}' THEN {number}L" for number, name in enumerate(SUBSCRIPTION_TYPES))
}
         WHEN subscription_type IS NOT NULL
         THEN raise_error(concat('a subscription of type ', subscription_type, ', which this version does not know'))
         END"""

_CONTRIBUTIONS: Final = f"""
    SELECT shard,
           coalesce(topic_id, {NO_ID}L) AS topic_id,
           coalesce(subscription_id, {NO_ID}L) AS subscription_id,
           coalesce(segment, {NO_ID}L) AS segment,
           coalesce(bucket, {NO_ID}L) AS bucket,
           coalesce(seek_generation, 0L) AS seek_generation,
           CASE WHEN offset IS NULL THEN
                    CASE fact WHEN 'created' THEN {PRESENT}L
                              WHEN 'subscribed' THEN {PRESENT}L
                              WHEN 'sealed' THEN {SEALED}L
                              WHEN 'pruned' THEN {REMOVED}L
                              WHEN 'topic_deleted' THEN {REMOVED}L
                              WHEN 'unsubscribed' THEN {REMOVED}L
                              ELSE {NO_FACT}L END
                WHEN subscription_id IS NULL THEN {INDEX_SLOT_SQL}
                WHEN end_offset IS NULL THEN {POSITION}L
                ELSE offset END AS kind,
           coalesce(end_offset, offset, {_TYPE}) AS max_value,
           subscription_id IS NULL AND offset IS NOT NULL AS is_record,
           1L AS records, size_bytes, timestamp_ms
    FROM {{facts}}
"""  # noqa: S608 - nothing in it comes from outside

_MERGED_CONTRIBUTIONS: Final = f"""
    SELECT shard, topic_id,
           coalesce(subscription_id, {NO_ID}L) AS subscription_id,
           coalesce(segment, {NO_ID}L) AS segment,
           coalesce(bucket, {NO_ID}L) AS bucket,
           coalesce(seek_generation, 0L) AS seek_generation,
           entry.kind, entry.max_value, index_slot IS NOT NULL AS is_record, records, size_bytes, timestamp_ms
    FROM (
        SELECT *, explode(filter(concat(
            array(
                CASE WHEN index_slot IS NOT NULL THEN named_struct('kind', index_slot, 'max_value', end_offset - 1) END,
                CASE WHEN present THEN named_struct('kind', {PRESENT}L, 'max_value', {_TYPE}) END,
                CASE WHEN removed THEN named_struct('kind', {REMOVED}L, 'max_value', CAST(NULL AS BIGINT)) END,
                CASE WHEN sealed_end_offset IS NOT NULL
                     THEN named_struct('kind', {SEALED}L, 'max_value', sealed_end_offset) END,
                CASE WHEN subscription_id IS NOT NULL AND segment IS NOT NULL
                     THEN named_struct('kind', if(reset, {POSITION}L, 0L), 'max_value', position) END
            ),
            transform(above, range -> named_struct('kind', range.first_offset, 'max_value', range.end_offset))
        ), entry -> entry IS NOT NULL)) AS entry
        FROM {{merged}}
    )
"""  # noqa: S608 - as above

_AGGREGATED: Final = f"""
    SELECT {", ".join(AGGREGATE_KEY)}, kind,
           sum(records) AS records,
           sum(size_bytes) FILTER (WHERE is_record) AS size_bytes,
           max(max_value) AS max_value,
           max_by(timestamp_ms, max_value) FILTER (WHERE is_record) AS timestamp_ms
    FROM {{contributions}}
    GROUP BY {", ".join(AGGREGATE_KEY)}, kind
"""  # noqa: S608 - as above

# In one partition there is nothing to shuffle; said here, it spares the two round trips that it takes on a frame.
_IN_ONE_PARTITION: Final = "(SELECT /*+ COALESCE(1) */ * FROM {facts})"
_AGGREGATED_IN_ONE_TASK: Final = _AGGREGATED.replace("{contributions}", f"({_CONTRIBUTIONS})").replace(
    "{facts}", _IN_ONE_PARTITION
)

# The lower 33 bits of that number are the row's own within its task, from 0.
_AGGREGATED_LIMITED: Final = f"""
    SELECT * FROM (SELECT *, monotonically_increasing_id() & 8589934591L AS {ROW_NUMBER} FROM ({_AGGREGATED}))
    WHERE {ROW_NUMBER} <= {{limit}}
"""  # noqa: S608 - as above

# A range belongs to the stretch before it unless it begins behind all that ends there. A POSITION is one from 0, and
# the first of its place. Whatever is not about a subscription in a segment stays apart by its kind.
_KEY_WINDOW: Final = (
    f"PARTITION BY {', '.join(AGGREGATE_KEY)}, exact_kind ORDER BY kind ROWS BETWEEN UNBOUNDED PRECEDING AND"
)
_AGGREGATED_JOINED: Final = f"""
    WITH aggregated AS (
        SELECT *, CASE WHEN subscription_id = {NO_ID} OR segment = {NO_ID} THEN kind END AS exact_kind FROM
        ({_AGGREGATED})
    ),
    flagged AS (
        SELECT *, CASE WHEN kind > max(max_value) OVER ({_KEY_WINDOW} 1 PRECEDING) THEN 1L ELSE 0L END AS starts_group
        FROM aggregated
    ),
    grouped AS (SELECT *, sum(starts_group) OVER ({_KEY_WINDOW} CURRENT ROW) AS range_group FROM flagged)
    SELECT {", ".join(AGGREGATE_KEY)}, min(kind) AS kind, sum(records) AS records, sum(size_bytes) AS size_bytes,
           max(max_value) AS max_value, max_by(timestamp_ms, max_value) AS timestamp_ms
    FROM grouped GROUP BY {", ".join(AGGREGATE_KEY)}, exact_kind, range_group
"""  # noqa: S608 - as above


def contributions(facts: DataFrame) -> DataFrame:
    """Return what each fact (rows of schemas.FACTS) adds to its kind. An unknown type of subscription fails the run."""
    return facts.sparkSession.sql(_CONTRIBUTIONS, facts=facts)


def contributions_from_merged(merged: DataFrame) -> DataFrame:
    """Return what rows that were merged before (schemas.MERGED) add to theirs."""
    return merged.sparkSession.sql(_MERGED_CONTRIBUTIONS, merged=merged)


def aggregate_in_one_task(facts: DataFrame) -> DataFrame:
    """Return one row (AGGREGATES) per kind of facts that are known to be few, without a shuffle."""
    return facts.sparkSession.sql(_AGGREGATED_IN_ONE_TASK, facts=facts)


def aggregate_limited(limit: int, contributions: DataFrame) -> DataFrame:
    """Return one row (AGGREGATES, ROW_NUMBER) per kind; a task that returns row ``limit`` may have more."""
    return contributions.sparkSession.sql(_AGGREGATED_LIMITED, contributions=contributions, limit=limit)


def aggregate_joined(contributions: DataFrame) -> DataFrame:
    """Return one row (AGGREGATES) per kind, and one for all ranges of a place that touch or overlap."""
    return contributions.sparkSession.sql(_AGGREGATED_JOINED, contributions=contributions)
