"""Query plans that aggregate new facts. Pure ``DataFrame → DataFrame`` functions: no session, no I/O.

Aggregates are sums and maxima of whole numbers under a key without nulls, which Spark compiles into
one loop with a fast hash table. A null in the key, or a text or list among the aggregates, makes
every fact three times as expensive. For the same reason facts with an offset are distinguished by
the columns that they set (headgate.ledger.chunk), and names are compared only for the others.

Aggregating takes one shuffle. Every range acknowledged out of order is a kind of its own, so
`aggregate_joined` joins adjacent ranges with windows. That takes a second shuffle, of aggregates only, and the rows
that reach this process stay few.

The plans are SQL, because each call on a DataFrame is a round trip to the JVM: with Columns, the
same plan took as long to build as to execute.
"""

from typing import Final

from pyspark.sql import DataFrame

from drain.backlog.aggregates import (
    AGGREGATE_KEY,
    NO_FACT,
    NO_ID,
    POSITION,
    PRESENT,
    REMOVED,
    SEALED,
    SUBSCRIPTION_TYPES,
)
from drain.backlog.timestamp_index import INDEX_SLOT_SQL

_TYPE: Final = f"""
    CASE {
    " ".join(f"WHEN subscription_type = '{name}' THEN {number}L" for number, name in enumerate(SUBSCRIPTION_TYPES))
}
         WHEN subscription_type IS NOT NULL
         THEN raise_error(concat('this version does not know the subscription type ', subscription_type))
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
"""  # noqa: S608 - no external input

_AGGREGATED: Final = f"""
    SELECT {", ".join(AGGREGATE_KEY)}, kind,
           sum(records) AS records,
           sum(size_bytes) FILTER (WHERE is_record) AS size_bytes,
           max(max_value) AS max_value,
           max_by(timestamp_ms, max_value) FILTER (WHERE is_record) AS timestamp_ms
    FROM {{contributions}}
    GROUP BY {", ".join(AGGREGATE_KEY)}, kind
"""  # noqa: S608 - as above

# One partition needs no shuffle. As a hint it saves the two round trips of coalesce() on a
# DataFrame.
_IN_ONE_PARTITION: Final = "(SELECT /*+ COALESCE(1) */ * FROM {facts})"
_AGGREGATED_IN_ONE_TASK: Final = _AGGREGATED.replace("{contributions}", f"({_CONTRIBUTIONS})").replace(
    "{facts}", _IN_ONE_PARTITION
)

# A range starts a new group if it begins behind the end of all ranges before it. A POSITION counts
# as a range from 0, the first of its key. Kinds that are not about a subscription in a segment stay
# separate.
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
    """Return each fact (fact_source.FACTS) as a contribution. An unknown subscription type fails."""
    return facts.sparkSession.sql(_CONTRIBUTIONS, facts=facts)


def contributions_again(aggregates: DataFrame) -> DataFrame:
    """Return aggregates (AGGREGATES) as contributions, so that they are aggregated again."""
    return aggregates.selectExpr("*", f"subscription_id = {NO_ID} AND kind >= 0 AS is_record")


def aggregate_in_one_task(facts: DataFrame) -> DataFrame:
    """Return one row (AGGREGATES) per kind, without a shuffle: for few facts."""
    return facts.sparkSession.sql(_AGGREGATED_IN_ONE_TASK, facts=facts)


def aggregate_joined(contributions: DataFrame) -> DataFrame:
    """Return one row (AGGREGATES) per kind, with adjacent and overlapping ranges of a key joined."""
    return contributions.sparkSession.sql(_AGGREGATED_JOINED, contributions=contributions)
