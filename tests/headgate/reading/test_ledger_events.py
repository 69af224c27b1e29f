"""Events from the ledger: which entries are events, their pages and limits, names, and new events."""

import asyncio
import math
from contextlib import aclosing
from types import SimpleNamespace
from typing import get_args

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.ledger import Ledger, shard_folders
from headgate.model import entries as e
from headgate.reading import event_text, ledger_events
from headgate.reading.ledger_events import LedgerEvents, names_of
from headgate.storage.object_store import Store, open_store
from headgate.views.cluster import EventList
from shard.requests.topic_commands import no_change
from tests.recorded.recording import ARCHIVE, FOLDER, load, unpack
from tests.support.fakes.object_store import FakeStore

SILENT = """ConsumerDisconnected ConsumerReconnected ConsumerRegistered DataDeleted DeliveriesBegun ProducerOpened
ProducersExpired RecordsAcknowledged RecordsStored SegmentGranted SegmentRevoked SegmentWeightsSet"""
"""Entries that are too many to be read one by one."""


async def ledger(shard: int = 0, *chunks: tuple[int, list[e.AnyEntry]], store: Store | None = None) -> Ledger:
    made = Ledger(store or FakeStore(latency_seconds=(0, 0)), shard)
    for number, (at_ms, entries) in enumerate(chunks, start=1):
        await write(made, number, at_ms, entries)
    return made


async def write(made: Ledger, number: int, at_ms: int, entries: list[e.AnyEntry]) -> None:
    builder = ChunkBuilder()
    for entry in entries:
        builder.add(entry, None)
    await made.append(number, builder.encode(shard=made.shard, number=number, leader_epoch=3, at_ms=at_ms))


def seek(topic_id: int = 1) -> e.SubscriptionSeek:
    return e.SubscriptionSeek(topic_id=topic_id, subscription_id=7, seek_generation=1, positions={0: 1}, token="t")


def created(topic_id: int = 1, name: str = "orders") -> e.TopicCreated:
    return e.TopicCreated(topic_id=topic_id, topic=name, segments=2, token="t", user="ada")


def texts(events: LedgerEvents) -> list[tuple[int, int, str | None, str]]:
    return [(each.at_ms, each.shard, each.topic, each.text) for each in events.found().events]


async def read(*ledgers: Ledger, limit: int | None = 100, **more: int) -> LedgerEvents:
    names = {(0, "topic", 1): "orders", (0, "subscription", 7): "billing"}
    events = LedgerEvents(ledgers=ledgers, names=names, limit=limit, **more)
    await events.run()
    return events


def test_each_type_of_entry_is_an_event_or_is_known_to_be_none() -> None:
    silent = {getattr(e, each) for each in SILENT.split()}
    assert set(get_args(e.AnyEntry)) == silent | event_text.TEXTS.keys()
    same = no_change(SimpleNamespace(topic_id=1, policy=e.NO_POLICY), "k")
    assert event_text.TEXTS[e.TopicPolicySet](same) == "a command changed nothing", "and not that a policy was set"


async def test_the_events_of_a_recorded_ledger_are_readable(tmp_path) -> None:
    objects, _ = load(max(FOLDER.glob(f"*/{ARCHIVE}")))
    unpack(objects, tmp_path)
    store = open_store(tmp_path.as_uri())
    events = await read(*(Ledger(store, shard) for shard in await shard_folders(store)), limit=None)

    assert events.found().next is None
    found = {each.event: each for each in events.found().events}
    assert {"term_started", "segment_split", "segments_merged", "subscription_seek", "key_parked"} <= found.keys()
    assert all(each.text and "None" not in each.text for each in found.values())


async def test_events_of_all_shards_come_by_time_and_page_by_page() -> None:
    trimmed = e.LedgerTrimmed(below=1)
    first = await ledger(0, (10, [created(), trimmed]), (20, []), (20, [seek()]), (40, [seek()]))
    second = await ledger(1, (15, [trimmed]), (20, [trimmed]), (35, [trimmed]))
    newest = texts(await read(first, second))
    assert [(at_ms, shard) for at_ms, shard, *_ in newest] == [
        *((40, 0), (35, 1), (20, 1), (20, 0), (15, 1), (10, 0), (10, 0))
    ]
    assert newest[-1][2:] == ("orders", "created by ada, segments: 2")

    paged, before_ms = [], math.inf
    while before_ms is not None:
        page = await read(first, second, before_ms=before_ms, limit=2, at_a_time=1)
        paged += texts(page)
        before_ms = page.found().next
    assert paged == newest
    assert texts(await read(first, second, since_ms=20)) == newest[:4]
    assert [each[2] for each in texts(await read(first, topic_id=2))] == [None], "of its shard"


async def test_a_search_that_is_limited_says_how_far_it_came(monkeypatch) -> None:
    monkeypatch.setattr(ledger_events, "MAX_CHUNKS", 4)
    quiet = await ledger(0, *((number, []) for number in range(1, 9)))
    await write(quiet, 9, 9, [seek()])
    events = await read(quiet, at_a_time=2)
    assert texts(events) == [(9, 0, "orders", "seek by command, now seek generation 1")]
    assert events.found().next == 7
    assert LedgerEvents(ledgers=[quiet], names={}).found() == EventList(events=(), next=2**53)
    assert (await read(await ledger())).found() == EventList(events=(), next=None)


async def test_new_events_follow_and_what_was_trimmed_meanwhile_is_none(monkeypatch) -> None:
    monkeypatch.setattr(ledger_events, "FOLLOW_SECONDS", 0.0)
    made = await ledger(0, (10, [created(3, "new")]), (20, [created()]))
    events = LedgerEvents(ledgers=[made], names=names_of([], []))
    numbers = made.numbers

    async def numbers_of_the_past(after: int = 0) -> list[int]:
        # Later, a listing that lags does not show chunk 3.
        return [1, 2] if not after else (await numbers(after))[1:]

    made.numbers = numbers_of_the_past
    await made.delete(1)
    await events.run()
    assert [each[2] for each in texts(events)] == ["orders"]
    async with aclosing(events.follow()) as following, asyncio.timeout(5):
        await write(made, 3, 30, [seek(3)])
        await write(made, 4, 40, [])
        event = await anext(following)
    assert (event.topic, event.subscription, event.event) == ("topic 3", "subscription 7", "subscription_seek")
