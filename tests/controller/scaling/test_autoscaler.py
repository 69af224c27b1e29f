"""Automatic splits and merges by the leader: measured, applied, logged, counted, and across a failover."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import structlog

from controller.leader.leader import ShardLeader
from controller.settings.sections import ScalingSettings
from headgate.ledger import chunk
from headgate.model import entries as e
from headgate.model.identifiers import ANONYMOUS
from headgate.protocol.requests import CreateTopic, Heartbeat, ProduceBatch, Record, RegisterConsumer
from shard.access.quotas import Limits
from shard.access.rules import AccessRules, Right, Role
from tests.support.worlds.one_shard import BareClient, OneShard, now_ms

QUICK = ScalingSettings(
    split=True,
    merge=True,
    split_records_per_second=20,
    split_window_seconds=10,
    merge_window_seconds=30,
    segment_cooldown_seconds=10,
    topic_cooldown_seconds=5,
    merge_cooldown_seconds=30,
)


@asynccontextmanager
async def scaled(**changes: Any) -> AsyncIterator[tuple[OneShard, ShardLeader, BareClient]]:
    """Topic orders under the settings `QUICK` with ``changes``."""
    shard = OneShard(scaling=msgspec.structs.replace(QUICK, **changes))
    async with shard.leader() as leader, shard.client() as client:
        await client.call(CreateTopic, topic="orders", token="1")
        yield shard, leader, client


def active(leader: ShardLeader) -> int:
    return len(leader.state.topics["orders"].layout.active())


async def produce(client: BareClient, seconds: float, records: int, **fields: Any) -> None:
    """Store ``records`` records per second, with a thousand keys in turn."""
    for second in range(int(seconds)):
        batch = [Record(b"%d" % ((second * records + n) % 1000), b"v", 0) for n in range(records)]
        await client.call(ProduceBatch, topic="orders", records=batch, **fields)
        await asyncio.sleep(1)


def entries(shard: OneShard, kind: type[Any]) -> list[Any]:
    return [
        entry
        for number, data in enumerate(sorted(shard.store.objects.items()), start=1)
        for entry in chunk.decode(data[1], shard=0, number=number).entries
        if isinstance(entry, kind)
    ]


async def test_a_busy_segment_splits_and_quiet_segments_merge() -> None:
    with structlog.testing.capture_logs() as logged:
        async with scaled() as (shard, leader, client):
            await produce(client, 60, 50)
            assert active(leader) == 4, "50 records/s, at most 20 per segment"
            await asyncio.sleep(120)
            assert active(leader) == 1
            await leader.commit.flush()

    first, *_ = entries(shard, e.SegmentSplit)
    assert (first.segment, first.token) == (0, "")
    assert first.reason.startswith("segment 0: 50 records/s over 10 s, above 20")
    logged_changes = [line for line in logged if line["event"] == "topic.scaled"]
    assert [line["reason"] for line in logged_changes] == ["rate"] * 3 + ["quiet"] * 3
    assert first.reason == logged_changes[0]["detail"]
    sample = shard.registry.get_sample_value
    assert sample("headgate_layout_changes_total", {"kind": "split", "reason": "rate"}) == 3
    assert sample("headgate_layout_changes_total", {"kind": "merge", "reason": "quiet"}) == 3
    assert sample("headgate_layout_changes_total", {"kind": "split", "reason": "command"}) == 0


async def test_a_new_leader_restores_rates_and_cool_downs() -> None:
    """It decides after one window, from the rates in the ledger, and merges no segment that was busy before."""
    async with scaled() as (shard, leader, client):
        await produce(client, 25, 30)
        assert active(leader) == 2
        await produce(client, 5, 30)
        changed = leader.state.topics["orders"].layout.layout_epoch
    async with shard.leader("b") as leader, shard.client("client-b") as client:
        tails = leader.state.topics["orders"].tails
        assert sum(tail.traffic.rate(now_ms(), 30_000).records for tail in tails.values()) > 0, "rates are restored"
        await produce(client, 60, 12, leader_epoch=2)
        assert leader.state.topics["orders"].layout.layout_epoch == changed, "each has 6 records/s"


async def test_a_segment_splits_for_a_consumer_without_one() -> None:
    async with scaled(split_records_per_second=100) as (shard, leader, client):
        names = [{"topic": "orders", "subscription": "s", "consumer": f"c{n}", "incarnation": 1} for n in range(2)]
        for name in names:
            await client.call(RegisterConsumer, **name, subscription_type="QUEUE")
        for _ in range(8):
            await produce(client, 5, 50)
            for name in names:
                await client.call(Heartbeat, **name)
        assert active(leader) == 2
        assert {entry.reason for entry in entries(shard, e.SegmentSplit)} == {
            "2 consumers for 1 active segments; segment 0 is the busiest"
        }


async def test_a_split_beyond_the_quota_of_the_topics_owner_is_logged_once() -> None:
    with structlog.testing.capture_logs() as logged:
        async with scaled() as (shard, leader, client):
            everyone = (Right(Role.ADMINISTRATOR),)
            shard.access.rules = AccessRules({ANONYMOUS: everyone}, limits={ANONYMOUS: Limits(segments=2)})
            await produce(client, 40, 50)
            assert len(leader.state.topics["orders"].layout.segments) == 1

    (suppressed,) = [line for line in logged if line["event"] == "segment.split_suppressed"]
    assert suppressed["limit"] == "quota"
    assert "its quota segments is 2" in suppressed["detail"]


async def test_a_step_of_the_clock_changes_no_layout() -> None:
    """Forward, no records seem to arrive for minutes; back, all records until the clock has caught up have one time."""
    async with scaled() as (shard, leader, client):
        await produce(client, 30, 30)
        assert active(leader) == 2
        changed = leader.state.topics["orders"].layout.layout_epoch
        for shard.clock_ahead_ms in (300_000, 0):
            await produce(client, 400, 30)
        assert leader.state.topics["orders"].layout.layout_epoch == changed
