"""When everything happened in a run, from the files of producers and consumers. No daemon is asked."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos.cluster import ORDERS
from chaos.judge import Operation, RunEvidence, Timeline
from headgate import SubscriptionType
from trials.judge import TopicEvidence

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


def timeline_of(
    run: RunEvidence, began_ns: int, ended_ns: int, operations: Sequence[Operation], children: Mapping[int, int]
) -> Timeline:
    """Return when everything happened. ``children``: segment of the orders → when it was created.

    A child without records is left out: a merge may follow while no producer is connected.
    """
    (orders,) = (topic for topic in run.topics if topic.topic == ORDERS)
    streams = [each for each in orders.subscriptions if each.kind is SubscriptionType.STREAM]
    first: dict[int, int] = {}
    for delivery in (delivery for each in streams for delivery in each.deliveries):
        first[delivery.segment] = min(delivery.at_ns, first.get(delivery.segment, delivery.at_ns))
    stored_ns = _first_stored(orders)
    return Timeline(
        began_ns=began_ns,
        ended_ns=ended_ns,
        acknowledged={
            topic.topic: sorted(record.done_ns for record in topic.sent if record.outcome == "committed")
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
    segments = {(record.key, record.counter): record.segment for record in topic.stored}
    first: dict[int, int] = {}
    for record in topic.sent:
        segment = segments.get((record.key, record.counter))
        if segment is not None and record.outcome == "committed":
            first[segment] = min(record.done_ns, first.get(segment, record.done_ns))
    return first
