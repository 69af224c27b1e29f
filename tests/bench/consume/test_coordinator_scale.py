"""The coordinator benchmark: its measure of memory, and that both sides hold the same facts."""

from bench.consume.coordinator_scale import CONSUMERS, SEGMENTS, _Shard, allocated_bytes, minimal_facts


def test_allocated_bytes_are_those_still_referenced() -> None:
    assert 1_000_000 <= allocated_bytes(lambda: bytearray(1_000_000)) < 1_010_000
    assert allocated_bytes(lambda: len(bytearray(1_000_000))) < 10_000


async def test_both_sides_hold_the_same_facts() -> None:
    shard = _Shard(3)
    bare = minimal_facts(3)

    for coordinator, facts in zip(shard.coordinators, bare, strict=True):
        described = coordinator.describe()
        assert set(CONSUMERS) == {consumer.consumer for consumer in described.consumers} == set(facts["consumers"])
        assert SEGMENTS == len(described.segments) == len(facts["holdings"]) == len(facts["positions"])
        assert {"granted"} == {segment.status for segment in described.segments}
        assert {SEGMENTS // 2} == {len(consumer.segments) for consumer in described.consumers}
    await shard.close()


async def test_heartbeats_write_no_entries() -> None:
    shard = _Shard(2)
    before = shard.state.chunk
    shard.heartbeats()()

    assert before == shard.state.chunk
    await shard.close()
