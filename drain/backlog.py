"""The counting itself: what new facts and the previous result come to, as functions DataFrame → DataFrame.

There is no session here, no path, no setting and nothing that runs: a plan goes out for what came in. One union and one
groupBy do it, so the plan has a single shuffle, and what crosses it has been reduced on the map side to one row per
key and task, however many records and cumulative acknowledgements there are. Only ranges acknowledged out of order
cross one by one.

The key is (shard, topic, subscription, segment, seek generation). Rows without a subscription are about a segment, rows
without a segment about a subscription, rows with neither about a topic. The generation is part of the key because
only drain.settlement, which sees all rows of a subscription, can say which generations still count.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

KEY = ("shard", "topic_id", "subscription_id", "segment", "seek_generation")


def contributions(facts: DataFrame) -> DataFrame:
    """Return what each fact (rows of schemas.FACTS) adds to the row of its key."""
    fact, offset, end = f.col("fact"), f.col("offset"), f.col("end_offset")
    is_record, is_acknowledged, is_position = fact == "record", fact == "acknowledged", fact == "position"
    no_hole_below = offset == 0
    return facts.where(fact.isNotNull()).select(
        "shard",
        "topic_id",
        "subscription_id",
        "segment",
        f.coalesce("seek_generation", f.lit(0)).alias("seek_generation"),
        "subscription_type",
        f.when(is_record, 1).cast("long").alias("records"),
        "size_bytes",
        f.when(is_record, offset + 1).alias("end_offset"),
        f.when(fact == "sealed", end).alias("sealed_end_offset"),
        f.when(is_position, offset).when(is_acknowledged & no_hole_below, end).alias("position"),
        f.when(
            is_acknowledged & ~no_hole_below & (end > offset),
            f.array(f.struct(offset.alias("first_offset"), end.alias("end_offset"))),
        ).alias("above"),
        is_position.alias("reset"),
        fact.isin("pruned", "topic_deleted", "unsubscribed").alias("removed"),
        fact.isin("created", "subscribed").alias("present"),
        f.lit(False).alias("carried"),
    )


def carried(state: DataFrame) -> DataFrame:
    """Return what the previous result (rows of schemas.STATE) adds: itself, as if it were facts."""
    added = {"reset": False, "removed": False, "present": True, "carried": True}
    return state.select("*", *(f.lit(value).alias(name) for name, value in added.items()))


def merged(*parts: DataFrame) -> DataFrame:
    """Return one row (schemas.MERGED) per key, for all rows of ``parts`` (contributions and what is carried)."""
    gathered = (
        reduce(DataFrame.unionByName, parts)
        .groupBy(*KEY)
        .agg(
            f.max("subscription_type").alias("subscription_type"),
            f.coalesce(f.sum("records"), f.lit(0)).alias("records"),
            f.coalesce(f.sum("size_bytes"), f.lit(0)).alias("size_bytes"),
            f.coalesce(f.max("end_offset"), f.lit(0)).alias("end_offset"),
            f.max("sealed_end_offset").alias("sealed_end_offset"),
            f.coalesce(f.max("position"), f.lit(0)).alias("position"),
            f.flatten(f.collect_list("above")).alias("above"),
            *(f.max(flag).alias(flag) for flag in ("reset", "removed", "present", "carried")),
        )
    )
    return _with_ranges_joined(gathered).select(
        *KEY,
        "subscription_type",
        "records",
        "size_bytes",
        "end_offset",
        "sealed_end_offset",
        "position",
        "above",
        "reset",
        "removed",
        "present",
        "carried",
    )


def _with_ranges_joined(gathered: DataFrame) -> DataFrame:
    """Return ``gathered`` with ``position`` moved up over the ranges it reaches, and the rest of ``above`` disjoint.

    With all firsts sorted and all ends sorted, each by itself, nothing covers the stretch between the n-th end and the
    first after it exactly if that end is the smaller. So the holes come out of two sorts and one pass, where folding
    the ranges one by one would copy the list for each of them.
    """
    below = f.struct(f.lit(0).cast("long").alias("first_offset"), f.col("position").alias("end_offset"))
    ranges = f.concat(f.array(below), f.col("above"))
    bounds = gathered.withColumns(
        {
            "firsts": f.sort_array(f.transform(ranges, lambda part: part["first_offset"])),
            "ends": f.sort_array(f.transform(ranges, lambda part: part["end_offset"])),
        },
    )
    followed = f.size("firsts") - 1
    pairs = f.zip_with(
        f.slice("ends", 1, followed),
        f.slice("firsts", 2, followed),
        lambda end, first: f.struct(end.alias("from"), first.alias("to")),
    )
    holes = bounds.withColumn("holes", f.filter(pairs, lambda hole: hole["from"] < hole["to"]))
    last_end = f.element_at("ends", -1)
    ends_above = f.slice(f.concat(f.col("holes.from"), f.array(last_end)), 2, f.size("holes"))
    return holes.withColumns(
        {
            "position": f.coalesce(f.get(f.col("holes.from"), f.lit(0)), last_end),
            "above": f.zip_with("holes.to", ends_above, _range),
        },
    )


def _range(first: Column, end: Column) -> Column:
    return f.struct(first.alias("first_offset"), end.alias("end_offset"))
