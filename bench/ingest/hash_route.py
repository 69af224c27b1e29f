"""Cost of routing a record, against only hashing its key.

Ours: controller.decisions.placement.route_batch on whole batches: hash, route to an active segment,
next offset, columns of the open chunk, and the entry. The other side: a loop over the same records
that only hashes each key. The ratio contains everything that a leader does per record.
"""

from __future__ import annotations

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from bench.harness.workload import Shard, batches
from controller.decisions.placement import route_batch
from headgate.ledger.record_columns import RecordColumns
from headgate.model.hashing import segment_hash

BATCHES, QUICK_BATCHES = 400, 40
RECORDS_EACH, VALUE_BYTES, SEGMENTS = 100, 100, 64


def measure(effort: Effort) -> Measurement:
    """Return the time of routing over the time of hashing."""
    topic = Shard(SEGMENTS).state.topics["bench"]
    pending = batches(effort.pick(BATCHES, QUICK_BATCHES), RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID)
    count = len(pending) * RECORDS_EACH

    def place_all() -> int:
        columns = RecordColumns()
        for batch in pending:
            columns.extend(route_batch(topic, batch)[1])
        return len(columns)

    def hash_all() -> int:
        hashed = 0
        for batch in pending:
            for record in batch.records:
                segment_hash(record.key)
                hashed += 1
        return hashed

    assert place_all() == hash_all() == count, "both sides must see every record"
    rounds = run_alternating({"place": place_all, "hash": hash_all}, effort.pick(31, 5), effort.progress)
    measured = rounds.median_ratio("place", "hash")
    return Measurement(
        measured.value,
        {
            **measured.parts,
            "place_records_a_second": round(count / rounds.median_seconds("place")),
            "hash_records_a_second": round(count / rounds.median_seconds("hash")),
            "records": count,
            "segments": SEGMENTS,
        },
    )


BENCHMARK = Benchmark(unit="times hashing alone", goal=6.5, better="lower", measure=measure)
