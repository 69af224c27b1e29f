"""What the figure of coordinators rests on."""

from bench.coordinator_scale import CONSUMERS, SEGMENTS, _Shard, barest, grown_bytes


def test_what_is_kept_counts_and_what_is_let_go_does_not() -> None:
    assert 1_000_000 <= grown_bytes(lambda: bytearray(1_000_000)) < 1_010_000
    assert grown_bytes(lambda: len(bytearray(1_000_000))) < 10_000


async def test_both_sides_hold_the_same_facts() -> None:
    shard = _Shard(3)
    bare = barest(3)

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
