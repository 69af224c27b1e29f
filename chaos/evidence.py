"""Read what a run left: the files of producers and consumers, and the ledger. No daemon is asked."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos.cluster import ORDERS, READERS, SHARDS, TOPICS, ChaosCluster
from chaos.judge import RunEvidence, SubscriptionEvidence, TopicEvidence
from chaos.timeline import FaultWindow, Operation, Timeline
from demo.checks import Violation
from demo.evidence import read_deliveries, read_ledger, read_sent
from headgate import SubscriptionType
from headgate.ledger.ledger import Ledger
from headgate.model.hashing import shard_of
from headgate.storage.object_store import open_store

TAIL_BYTES: Final = 4096
"""More than one line of a producer's file."""


def newest_done_ns(path: Path) -> int:
    """Return when the last record of a growing file of a producer was done; 0: none was."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    fields = lines[-1].split(b"\t") if lines else []
    return int(fields[1]) if len(fields) > 1 and fields[2] == b"committed" else 0


async def read_topic(cluster: ChaosCluster, topic: str) -> TopicEvidence:
    """Return everything about one topic. Raises LedgerError if its ledger cannot be read."""
    shard = shard_of(topic, SHARDS)
    chunks, stored = await read_ledger(Ledger(open_store(cluster.ledger_url), shard))
    subscriptions = {reader.subscription: reader.kind for reader in READERS if reader.topic == topic}
    return TopicEvidence(
        topic=topic,
        shard=shard,
        sent=read_sent(cluster.output_path(f"producer-{topic}")),
        stored=stored,
        chunks=chunks,
        subscriptions=[
            SubscriptionEvidence(
                name=name,
                kind=kind,
                deliveries=[
                    delivery
                    for reader in READERS
                    if (reader.topic, reader.subscription) == (topic, name)
                    for run, path in cluster.outputs(reader)
                    for delivery in read_deliveries(path, run)
                ],
            )
            for name, kind in subscriptions.items()
        ],
    )


async def read_run(
    cluster: ChaosCluster, faults: Sequence[FaultWindow], ended: Sequence[str], notes: Sequence[Violation]
) -> RunEvidence:
    """Return the evidence of a run. Raises LedgerError if a ledger cannot be read."""
    topics = [await read_topic(cluster, topic) for topic in TOPICS]
    return RunEvidence(topics=topics, faults=faults, ended_programs=ended, notes=notes)


def timeline_of(
    run: RunEvidence, began_ns: int, ended_ns: int, operations: Sequence[Operation], children: Mapping[int, int]
) -> Timeline:
    """Return when everything happened. ``children``: segment of the orders → when it was created.

    A child without records is left out: a merge may follow while no producer is connected.
    """
    streams = [each for each in _subscriptions(run, ORDERS) if each.kind is SubscriptionType.STREAM]
    first: dict[int, int] = {}
    for delivery in (delivery for each in streams for delivery in each.deliveries):
        first[delivery.segment] = min(delivery.at_ns, first.get(delivery.segment, delivery.at_ns))
    (orders,) = (topic for topic in run.topics if topic.topic == ORDERS)
    stored_ns = _first_stored(orders)
    return Timeline(
        began_ns=began_ns,
        ended_ns=ended_ns,
        acknowledged={
            topic.topic: sorted(
                ((record.sent_ns, record.done_ns) for record in topic.sent if record.outcome == "committed"),
                key=lambda times: times[1],
            )
            for topic in run.topics
        },
        delivered=sorted(
            delivery.at_ns
            for topic in run.topics
            for subscription in topic.subscriptions
            for delivery in subscription.deliveries
        ),
        operations=operations,
        children=[
            (max(made_ns, stored_ns[segment]), first.get(segment, ended_ns))
            for segment, made_ns in sorted(children.items())
            if segment in stored_ns
        ],
    )


def _first_stored(topic: TopicEvidence) -> dict[int, int]:
    """Return when the producer knew that the first record of each segment was stored."""
    segments = {(record.key, record.counter): record.segment for record in topic.stored}
    first: dict[int, int] = {}
    for record in topic.sent:
        segment = segments.get((record.key, record.counter))
        if segment is not None and record.outcome == "committed":
            first[segment] = min(record.done_ns, first.get(segment, record.done_ns))
    return first


def _subscriptions(run: RunEvidence, name: str) -> list[SubscriptionEvidence]:
    return [subscription for topic in run.topics if topic.topic == name for subscription in topic.subscriptions]
