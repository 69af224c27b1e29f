"""What the benchmark of coordinators rests on."""

from bench.coordinator_scale import CONSUMERS, SEGMENTS, _Shard, allocated_bytes, minimal_facts


def test_what_is_kept_counts_and_what_is_let_go_does_not() -> None:
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


async def test_heartbeats_change_nothing_on_record() -> None:
    shard = _Shard(2)
    before = shard.state.chunk
    shard.heartbeats()()

    assert before == shard.state.chunk
    await shard.close()
