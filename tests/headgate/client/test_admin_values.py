"""Each public value of `Admin` corresponds to a struct of the wire, field by field."""

import dataclasses
import inspect
from typing import Any

import msgspec
import pytest

from headgate.client import admin_values as v
from headgate.client.admin_values import public_value
from headgate.errors import ProtocolError
from headgate.model.entries import SubscriptionType, TopicPolicy
from headgate.protocol import messages as m

ENVELOPE = {"request_id", "leader_epoch"}
PAIRS: list[tuple[type[msgspec.Struct], type[Any]]] = [
    (m.SegmentDescription, v.SegmentInfo),
    (TopicPolicy, v.PolicyOverrides),
    (m.ExternalDescription, v.ExternalSource),
    (m.TopicDescription, v.TopicInfo),
    (m.TopicImportReply, v.TopicImportResult),
    (m.RetainedSegment, v.UnprunedSegment),
    (m.Pruned, v.PruneResult),
    (m.ConsumerDescription, v.ConsumerInfo),
    (m.BucketRangeProgress, v.BucketRangeAssignment),
    (m.SegmentProgress, v.SegmentAssignment),
    (m.ProducerDescription, v.ProducerInfo),
    (m.SubscriptionDescription, v.SubscriptionInfo),
    (m.SegmentMove, v.SegmentSeek),
    (m.SeekReply, v.SeekResult),
    (m.SegmentBacklog, v.SegmentBacklogInfo),
    (m.SubscriptionBacklog, v.BacklogInfo),
    (m.BlockingAncestor, v.BlockingSegment),
    (m.SegmentExplanation, v.SegmentReasons),
    (m.ConsumerExplanation, v.ConsumerReasons),
    (m.SubscriptionExplanation, v.Explanation),
    (m.PlannedMove, v.ProposedMove),
    (m.PlannedSegment, v.ProposedSegment),
    (m.ConsumerLoad, v.ConsumerSegmentCount),
    (m.ChangePlan, v.Plan),
]


@pytest.mark.parametrize(("wire", "public"), PAIRS, ids=lambda kind: kind.__name__)
def test_a_public_value_has_every_field_of_its_wire_struct_and_no_other(wire, public):
    assert {field.name for field in dataclasses.fields(public)} == set(wire.__struct_fields__) - ENVELOPE


def test_every_public_value_is_a_frozen_dataclass_with_a_wire_struct():
    public = {kind for _, kind in inspect.getmembers(v, dataclasses.is_dataclass)}
    assert {kind for _, kind in PAIRS} == public
    assert all(kind.__dataclass_params__.frozen for kind in public)


def described(**changes: Any) -> m.SubscriptionDescription:
    shared = m.BucketRangeProgress(first_bucket=0, end_bucket=8, status="granted", acknowledged_offset=3, consumer="a")
    segment = m.SegmentProgress(
        segment=4, status="shared", acknowledged_offset=2, next_offset=9, bucket_ranges=[shared]
    )
    consumer = m.ConsumerDescription(
        consumer="a", incarnation=1, connected=True, segments=[4], bucket_ranges=[(4, 0, 8)]
    )
    return m.SubscriptionDescription(
        **{
            "topic": "orders",
            "subscription": "billing",
            "subscription_id": 5,
            "type": "STREAM",
            "order": "strict",
            "seek_generation": 0,
            "consumers": [consumer],
            "segments": [segment],
        }
        | changes
    )


def test_nested_structs_become_public_values_and_lists_become_tuples():
    found = public_value(described(), v.SubscriptionInfo)

    assert SubscriptionType.STREAM is found.type
    assert (v.HeldBucketRange(4, 0, 8),) == found.consumers[0].bucket_ranges
    assert 3 == found.segments[0].bucket_ranges[0].acknowledged_offset
    assert isinstance(found.segments[0], v.SegmentAssignment)
    hash(found)


def test_a_value_of_a_later_version_is_a_protocol_error_that_names_the_field():
    with pytest.raises(
        ProtocolError, match=r"SubscriptionDescription cannot be read: Invalid enum value.*order.*install"
    ):
        public_value(described(order="reversed"), v.SubscriptionInfo)
