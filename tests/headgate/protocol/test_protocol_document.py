"""docs/protocol.md matches the code: every message, field, limit, topic, verdict, hash and example.

The other direction is held too: nothing is described that the code does not have.
"""

import inspect
import json
import re
import typing

import msgspec
import pytest

from controller.devices.intake import MAX_CORRELATION_BYTES, MAX_RESPONSE_TOPIC_BYTES
from controller.leader.request_decoding import MAX_SEARCHED_BYTES, Malformed, read_request
from coordinator.assignment_reconciler import MAX_REPEATED_GRANTS
from headgate.ledger.chunk import COLUMNS, RECORD_COLUMNS
from headgate.ledger.objects import chunk_folder, chunk_name
from headgate.model import entries as e
from headgate.model.headers import MAX_HEADER_BYTES, MAX_HEADERS, MAX_OWN_HEADER_BYTES, MAX_OWN_HEADERS
from headgate.model.identifiers import ANONYMOUS
from headgate.model.layout import key_bucket, key_hash, segment_hash
from headgate.protocol import codec, replies, requests
from headgate.protocol.codec import (
    MAX_MESSAGE_BYTES,
    MAX_REPLY_BYTES,
    MURMUR_DIGEST_BYTES,
    PART_BYTES,
    ChunkAnnouncement,
    ClusterDescription,
    HeadAnnouncement,
    LeaderAnnouncement,
    Presence,
    batch_digest,
    confirmations_prefix,
    parse_publish_address,
    publish_filters,
)
from headgate.protocol.request_fields import (
    MAX_BATCH_ACKNOWLEDGEMENTS,
    MAX_BATCH_RECORDS,
    MAX_RECORD_BYTES,
    PROTOCOL_VERSION,
    RequestBody,
)
from headgate.views.cluster import (
    MAX_BLOCKING_SEGMENTS,
    MAX_DESCRIBED_DAEMONS,
    MAX_REASON_CHARACTERS,
    ClusterInfo,
    ComponentInfo,
    SubscriptionSummary,
)
from shard.access.quotas import MAX_REFUSALS_PER_SECOND
from shard.access.rules import AccessRules, Right, Role
from shard.requests import verdicts
from shard.requests.topic_commands import MAX_SEGMENTS
from shard.requests.verdicts import Accept, Duplicate, judge_batch, judge_deadline, judge_term
from shard.state.producers import WINDOW
from shard.state.shard_state import MAX_REMEMBERED_COMMANDS, ShardState
from shard.subscriptions.refusal import Refusal
from shard.subscriptions.registration import MAX_CONSUMERS, MAX_SUBSCRIPTIONS, MISSED_HEARTBEATS
from tests.support.documents.markdown import sections, ticked
from tests.support.documents.wire_shapes import NAME_PATTERN, STRUCTS, heading, rows
from tests.support.samples.stored_batches import stored_batch
from tests.support.worlds.one_shard import OneShard

REQUESTS, REPLIES, PUSHES = (
    typing.get_args(union) for union in (requests.AnyRequestBody, replies.AnyReplyBody, replies.AnyPush)
)
STRUCT_HEADING = re.compile(r"`\w+` \w+|\w+ \((map|array|common fields)\)")
WITH_EXAMPLE = [
    *(ClusterDescription, LeaderAnnouncement, HeadAnnouncement, ChunkAnnouncement, Presence),
    *(
        requests.ProduceBatch,
        requests.OpenProducer,
        requests.AcknowledgeBatch,
        requests.RegisterConsumer,
        requests.Heartbeat,
        requests.ConfirmRevoked,
    ),
    *(requests.SeekSubscription, replies.SeekReply, requests.DescribeBacklog, replies.BacklogReply),
    *(
        replies.Committed,
        replies.Rejected,
        replies.ProducerIdentity,
        replies.Registered,
        replies.HeartbeatReply,
        replies.AssignmentChanged,
        replies.ConsumerFenced,
    ),
]
DOCUMENT = sections("protocol.md")
EXAMPLES = {
    kind: DOCUMENT[heading(kind)] for kind in STRUCTS if DOCUMENT.get(heading(kind), DOCUMENT[""]).fenced("hex")
}


def _tag(kind: type[msgspec.Struct]) -> str:
    return kind.__struct_config__.tag


def test_every_field_is_described_with_its_type_limits_and_default() -> None:
    tables = {heading(kind): DOCUMENT[heading(kind)].table() for kind in STRUCTS}

    assert {name: [row[:4] for row in table] for name, table in tables.items()} == {
        heading(kind): rows(kind) for kind in STRUCTS
    }
    assert [] == [row for table in tables.values() for row in table if len(row) != 5 or not row[4]], "without a meaning"


def test_the_document_describes_only_messages_that_exist() -> None:
    assert {name for name in DOCUMENT if STRUCT_HEADING.fullmatch(name)} == {heading(kind) for kind in STRUCTS}


def test_the_unions_contain_every_body_and_push() -> None:
    """Therefore the tests above cover every message."""
    assert {kind for kind in STRUCTS if issubclass(kind, RequestBody)} == set(REQUESTS)
    assert {kind for kind in STRUCTS if issubclass(kind, replies.ReplyBody)} == set(REPLIES)
    assert {kind for kind in STRUCTS if issubclass(kind, replies.Push)} == {*PUSHES, replies.Push}


def test_the_topic_table_matches_the_topic_functions() -> None:
    placeholders = {"cluster": "<cluster>", "shard": "<shard>", "address": "<user>/<client>", "topic_id": "<topic id>"}
    made = {
        function(*(placeholders[name] for name in inspect.signature(function).parameters))
        for name, function in vars(codec).items()
        if name.endswith("_topic")
    }
    table = DOCUMENT["Topics on the broker"].table()

    assert {ticked(row[0])[0] for row in table} == made
    announcements = {row[-1] for row in table if not row[-1].startswith("any ")}
    kinds = (ClusterDescription, LeaderAnnouncement, HeadAnnouncement, ChunkAnnouncement, Presence)
    assert announcements == {kind.__name__ for kind in kinds}


def test_the_limits_match_the_code() -> None:
    stated = {what: int(value.split()[0]) for what, value, _ in DOCUMENT["Encoding"].table()}

    assert stated == {
        "protocol": PROTOCOL_VERSION,
        "message": MAX_MESSAGE_BYTES,
        "part": PART_BYTES,
        "reply": MAX_REPLY_BYTES,
        "record": MAX_RECORD_BYTES,
        "headers": MAX_HEADERS,
        "header bytes": MAX_HEADER_BYTES,
        "own headers": MAX_OWN_HEADERS,
        "own header bytes": MAX_OWN_HEADER_BYTES,
        "window": WINDOW,
        "segments": MAX_SEGMENTS,
        "subscriptions": MAX_SUBSCRIPTIONS,
        "consumers": MAX_CONSUMERS,
        "records": MAX_BATCH_RECORDS,
        "acknowledgements": MAX_BATCH_ACKNOWLEDGEMENTS,
        "repeated": MAX_REPEATED_GRANTS,
        "commands": MAX_REMEMBERED_COMMANDS,
        "heartbeats": MISSED_HEARTBEATS,
    }
    assert DOCUMENT["Encoding"].fenced("regex") == [NAME_PATTERN + "\n"]


@pytest.mark.parametrize(
    ("kind", "field", "meaning"),
    [
        (ClusterInfo, "daemons", f"at most {MAX_DESCRIBED_DAEMONS}, by name"),
        (ComponentInfo, "reason", f"at most {MAX_REASON_CHARACTERS} characters"),
        (SubscriptionSummary, "blocking_segments", f"the first {MAX_BLOCKING_SEGMENTS} segments"),
    ],
    ids=["daemons", "reason", "blocking segments"],
)
def test_the_limits_of_a_description_match_the_code(kind: type[msgspec.Struct], field: str, meaning: str) -> None:
    meanings = {ticked(row[0])[0]: row[4] for row in DOCUMENT[heading(kind)].table()}

    assert meaning in meanings[field]


def test_the_limits_of_refusals_for_rates_match_the_code() -> None:
    text = " ".join(DOCUMENT["Quotas"].lines)

    assert f"the first {MAX_SEARCHED_BYTES} bytes" in text
    assert f"answers {MAX_REFUSALS_PER_SECOND:.0f} such requests" in text


def test_leaders_subscribe_to_what_devices_publish() -> None:
    text = "\n".join([*DOCUMENT["MQTT devices"].lines, *DOCUMENT["Confirmations"].lines])
    for followed in publish_filters("<cluster>", "<topic>"):
        assert f"`{followed}`" in text
        assert f"    {followed.replace('+', '<user>').removesuffix('#')}<key>\n" in text
    assert f"`{confirmations_prefix('<cluster>', '<user>')}" in text
    assert all(f"{limit} bytes" in text for limit in (MAX_RESPONSE_TOPIC_BYTES, MAX_CORRELATION_BYTES))
    assert parse_publish_address("c", "headgate/c/publish/orders/a/b") == ("orders", "a/b", None)
    assert parse_publish_address("c", "headgate/c/devices/ada/publish/orders/a/b") == ("orders", "a/b", "ada")
    assert f"{MAX_RECORD_BYTES} bytes of key, value and headers" in text


def test_the_request_table_has_every_request_and_reply() -> None:
    table = DOCUMENT["Requests and replies"].table()

    assert sorted(ticked(row[0])[0] for row in table) == sorted(_tag(kind) for kind in REQUESTS)
    assert {ticked(row[1])[0] for row in table} == {_tag(kind) for kind in REPLIES if kind is not replies.Rejected}


async def test_a_leader_replies_to_every_request_as_the_table_says() -> None:
    """Sends every request, in an order in which each one succeeds."""
    stream, queue = {"topic": "orders", "subscription": "s"}, {"topic": "orders", "subscription": "t"}
    consumer, segment = {**stream, "consumer": "c", "incarnation": 1}, {"segment": 0, "generation": 1}
    acknowledged = requests.Acknowledgement(**segment, first_offset=0, end_offset=1)
    begun = requests.BegunRecord(**segment, offset=0, bucket=0, delivery=1)
    conversation = [
        (requests.DescribeLeader, {}),
        (requests.CreateTopic, {"topic": "orders", "token": "1", "segments": 2}),
        (requests.OpenProducer, {"token": "2", "name": "loader", "incarnation": 1}),
        (requests.DescribePosition, {"producer": "loader", "topic": "orders"}),
        (requests.ListProducers, {}),
        (requests.DescribeProducer, {"producer": "loader"}),
        (requests.DeleteProducer, {"producer": "loader", "token": "9"}),
        (requests.ProduceBatch, {"topic": "orders", "records": [requests.Record(b"a", b"", 0)]}),
        (requests.RegisterConsumer, {**consumer, "subscription_type": "STREAM", "start": "earliest"}),
        (requests.Heartbeat, consumer),
        (requests.SetDeliveryPolicy, {**stream, "token": "16", "dead_letter_topic": "dead"}),
        (requests.ParkKey, {**consumer, **segment, "offset": 0, "key": b"a"}),
        (requests.ListParkedKeys, stream),
        (requests.ResumeKey, {**stream, "key": b"a", "token": "17"}),
        (requests.UnparkKey, {**consumer, **segment, "key": b"a", "parking": 1, "last": 0}),
        (requests.CreateSubscription, {**queue, "subscription_type": "QUEUE", "token": "10"}),
        (requests.AcknowledgeBatch, {**consumer, "acknowledgements": [acknowledged]}),
        (requests.BeginDeliveries, {**consumer, "records": [begun]}),
        (requests.ConfirmDeadLetters, {**consumer, "stored": [(1, 1)]}),
        (requests.SetDeliveryPolicy, {**queue, "token": "15", "ack_timeout_ms": 1000}),
        (requests.ConfirmRevoked, {**consumer, "released": [(segment["segment"], segment["generation"])]}),
        (requests.DescribeSubscription, stream),
        (requests.ListSubscriptions, {}),
        (requests.DescribeBacklog, stream),
        (requests.DescribeCluster, {}),
        (requests.TransferShard, {"daemon": "a", "token": "12"}),
        (requests.RaiseLevel, {"level": 1, "token": "14"}),
        (requests.SetMaintenance, {"daemon": "a", "on": True, "token": "13"}),
        (requests.SeekSubscription, {**stream, "token": "7", "to": "latest"}),
        (requests.SetSubscriptionOrder, {**stream, "token": "8", "order": "none"}),
        (requests.ExplainSubscription, stream),
        (requests.PlanChanges, {**stream, "splits": [0]}),
        (requests.LeaveConsumer, consumer),
        (requests.RegisterConsumer, {**consumer, "incarnation": 2, "subscription_type": "STREAM"}),
        (requests.EvictConsumer, {**stream, "consumer": "c", "token": "11"}),
        (requests.SplitSegment, {"topic": "orders", "segment": 0, "token": "3"}),
        (requests.MergeSegments, {"topic": "orders", "segments": (2, 3), "token": "4"}),
        (requests.SetTopicPolicy, {"topic": "orders", "policy": e.TopicPolicy(auto_split=True), "token": "7"}),
        (requests.PruneTopic, {"topic": "orders", "token": "8"}),
        (requests.DescribeTopic, {"topic": "orders"}),
        (requests.FindTopic, {"topic": "orders"}),
        (requests.SetShards, {"shards": 2, "before": 1, "token": "18"}),
        (requests.ListTopics, {}),
        (requests.ImportTopic, {"topic": "far", "token": "14", "segments": [requests.SegmentImport(segment="a")]}),
        (requests.DeleteSubscription, {**stream, "token": "5"}),
        (requests.DeleteTopic, {"topic": "orders", "token": "6"}),
    ]
    async with OneShard().led() as (_, client):
        answers = {_tag(kind): _tag(type(await client.call(kind, **fields))) for kind, fields in conversation}

    assert answers == {ticked(row[0])[0]: ticked(row[1])[0] for row in DOCUMENT["Requests and replies"].table()}


def test_each_message_is_in_the_section_of_its_group() -> None:
    """A request is not described in the section of replies."""
    group, grouped = "", {}
    for name in DOCUMENT:
        group = name if name in ("Announcements", *(f"Fields of {what}" for what in GROUPS)) else group
        grouped[name] = group
    for what, kinds in GROUPS.items():
        assert {grouped[heading(kind)] for kind in kinds} == {f"Fields of {what}"}


GROUPS = {"requests": REQUESTS, "replies": REPLIES, "pushes": PUSHES}


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_examples_match_their_bytes(kind) -> None:
    """Decodes with and without the structs; encoding gives the same bytes."""
    section = EXAMPLES[kind]
    (hex_text,), (json_text,) = section.fenced("hex"), section.fenced("json")
    data = bytes.fromhex("".join(hex_text.split()))

    assert _plain(msgspec.msgpack.decode(data)) == json.loads(json_text)
    if issubclass(kind, RequestBody):
        message = codec.decode_request(data)
        assert type(message.body) is kind
    elif issubclass(kind, replies.ReplyBody):
        message = codec.decode_reply(data)
        assert type(message.body) is kind
    else:
        message = (
            codec.decode_reply(data) if issubclass(kind, replies.Push) else msgspec.msgpack.decode(data, type=kind)
        )
        assert type(message) is kind
    assert codec.encode(message) == data


def test_every_important_message_has_an_example() -> None:
    assert [kind.__name__ for kind in WITH_EXAMPLE if kind not in EXAMPLES] == []


def test_the_hash_table_matches_the_code() -> None:
    table = DOCUMENT["Hashing"].table()
    keys = [bytes.fromhex(ticked(row[0])[0]) for row in table]

    assert [[*(ticked(cell)[0] for cell in row[1:3]), *row[3:]] for row in table] == [
        [f"{key_hash(key):08x}", f"{segment_hash(key):04x}", str(key_bucket(key, 16)), str(key_hash(key) % 4)]
        for key in keys
    ]
    assert {len(key) % 4 for key in keys} == {0, 1, 2, 3}, "every length of the tail"
    assert any(max(key, default=0) > 127 for key in keys), "bytes that are negative where bytes have a sign"


def test_chunk_paths_and_columns_match_the_ledger() -> None:
    text = "\n".join(DOCUMENT["Reading chunks"].lines)
    path = f"{chunk_folder(3)}/{chunk_name(42)}"
    shape = re.search(r"<ledger_url>/(\S*)<shard, (\d) digits>/<number, (\d+) digits>(\S*)", text)

    assert path == f"{shape[1]}{3:0{shape[2]}d}/{42:0{shape[3]}d}{shape[4]}"
    assert [(ticked(name)[0], kind) for name, kind in DOCUMENT["Reading chunks"].table()] == [
        (name, COLUMNS[name]) for name in RECORD_COLUMNS
    ]


# The verdict table

EPOCH = 12
DURABLE = 100
"""Far above every chunk of the state below, so that nothing is in flight unless a test says so."""
RECORD = requests.Record(b"key", b"value", 0)
TOO_LARGE = [requests.Record(b"k", bytes(MAX_RECORD_BYTES + 1), 0)]


def _state(finished: int) -> ShardState:
    """Return a shard on which producer 2 at epoch 1 has stored ``finished`` batches in a topic that was deleted since."""
    state = ShardState(0)
    opened = e.ProducerOpened(producer_id=2, producer_epoch=1, token="x")
    first = (
        e.TermStarted(leader_epoch=EPOCH, instance="a"),
        e.TopicCreated(topic_id=1, topic="t", segments=1, token="y"),
        e.TopicCreated(topic_id=4, topic="deleted", segments=1, token="v"),
        e.TopicImported(
            topic_id=3,
            topic="elsewhere",
            token="z",
            segments=[e.ImportedSegment(segment=0, label="a")],
            positions="opaque",
        ),
        opened,
    )
    state.apply_all(first, chunk=1, at_ms=0)
    fields = {"topic_id": 4, "digest": batch_digest(_batch(topic="deleted"), MURMUR_DIGEST_BYTES)}
    stored = (stored_batch(n, n, producer_id=2, producer_epoch=1, **fields) for n in range(finished))
    state.apply_all((*stored, e.TopicDeleted(topic_id=4, token="w")), chunk=2, at_ms=0)
    return state


def _batch(**changes: object) -> requests.ProduceBatch:
    fields = {"topic": "t", "records": [RECORD], "producer_id": 2, "producer_epoch": 1, "sequence": 3}
    return requests.ProduceBatch(**{**fields, **changes})


def _judge(finished: int = 3, durable: int = DURABLE, epoch: int = EPOCH, limit_ms: int | None = None, **batch: object):
    """Judge one batch of a shard with ``finished`` batches, in the steps of a leader."""
    body = _batch(**batch)
    request = requests.Request(
        request_id=1, protocol=PROTOCOL_VERSION, client_id="c", leader_epoch=epoch, max_term_age_ms=limit_ms, body=body
    )
    decoded = read_request(codec.encode(request), f"{ANONYMOUS}/c", b"")
    if isinstance(decoded, Malformed):
        return Refusal("invalid", decoded.reason)
    judged = judge_term(request, EPOCH) or judge_deadline(request, 1000)
    return judged or judge_batch(body, _state(finished), durable, user=ANONYMOUS, rules=ALL_BUT_FORBIDDEN)


FORBIDDEN = "forbidden"
ALL_BUT_FORBIDDEN = AccessRules({ANONYMOUS: (Right(Role.ADMINISTRATOR, ("t", "deleted", "nowhere", "elsewhere")),)})
NOWHERE = {"topic": "nowhere", "records": TOO_LARGE}
SITUATIONS = {
    "malformed, or a batch without a `leader_epoch`": lambda: _judge(epoch=EPOCH - 1, topic="nowhere", records=[]),
    "for another term": lambda: _judge(epoch=EPOCH - 1, limit_ms=1000, producer_id=99, **NOWHERE),
    "the term has reached the `max_term_age_ms` of the request": lambda: _judge(
        limit_ms=1000, producer_id=99, **NOWHERE
    ),
    "the producer is unknown, or another user's": lambda: _judge(producer_id=99, **NOWHERE),
    "producer epoch below the stored one": lambda: _judge(producer_epoch=0, sequence=9, **NOWHERE),
    "producer epoch above the stored one, not at sequence 0": lambda: _judge(producer_epoch=2, **NOWHERE),
    "further ahead than the next sequence": lambda: _judge(sequence=4, **NOWHERE),
    "older than the window": lambda: _judge(finished=WINDOW + 1, sequence=0, **NOWHERE),
    "a sequence in the window, with other content": lambda: _judge(sequence=1, **NOWHERE),
    "a sequence in the window, finished or in flight": lambda: _judge(sequence=1, topic="deleted", durable=1),
    "the user has no right to it": lambda: _judge(topic=FORBIDDEN, records=TOO_LARGE),
    "the topic does not exist": lambda: _judge(**NOWHERE),
    "an external topic, another `topic_id`, or a position not kept or behind a gap": lambda: _judge(
        topic="elsewhere", records=TOO_LARGE
    ),
    "a record is too large, has no key, or has headers that it may not have": lambda: _judge(
        finished=WINDOW, durable=1, sequence=WINDOW, records=TOO_LARGE
    ),
    f"{WINDOW} batches are in flight, or too many bytes wait": lambda: _judge(
        finished=WINDOW, durable=1, sequence=WINDOW
    ),
    "anything else": _judge,
}
"""Situation → the judgement of a batch in that situation which, where possible, is in later ones, too."""
REASONS = {
    "a sequence in the window, with other content": "other content",
    "the topic does not exist": "there is no topic 'nowhere'",
    "an external topic, another `topic_id`, or a position not kept or behind a gap": "is external",
    "a record is too large, has no key, or has headers that it may not have": "the limit is",
}
"""Tells those rows apart that have the same verdict."""


def _row(judgement) -> tuple[str, str]:
    """Return the reply and the barrier column for a judgement."""
    match judgement:
        case Accept():
            return "`committed`", ""
        case Duplicate(placements=None):
            return "`committed`, `duplicate`, no placements", ""
        case Duplicate():
            return "`committed`, `duplicate`", ""
        case Refusal(verdict=verdict, after_barrier=after_barrier):
            return f"`{verdict}`", "yes" if after_barrier else "no"
    raise AssertionError(judgement)


def test_the_verdict_table_has_the_order_of_judging() -> None:
    """Judges batches that several rows describe with the leader's functions: the first row wins."""
    table = DOCUMENT["Verdicts"].table()
    judged = {situation: judge() for situation, judge in SITUATIONS.items()}

    assert [tuple(row[:3]) for row in table] == [(situation, *_row(found)) for situation, found in judged.items()]
    assert all(row[3] for row in table), "every row says what the client does"
    assert all(reason in judged[situation].reason for situation, reason in REASONS.items())


def test_the_module_of_the_verdicts_lists_the_rows_of_the_table() -> None:
    text = (verdicts.__doc__ or "").replace("``", "`")
    listed = re.findall(r"^\d+\. +(.*) → (.*?)(, after a barrier)?$", text, re.MULTILINE)

    assert [(row[0], row[1], row[2] == "yes") for row in DOCUMENT["Verdicts"].table()] == [
        (situation, reply, bool(barrier)) for situation, reply, barrier in listed
    ]


def test_a_batch_without_a_producer_skips_the_rows_about_producers() -> None:
    anonymous = {"producer_id": None, "producer_epoch": 0, "sequence": None}
    assert isinstance(_judge(**anonymous), Accept)
    assert "is external" in _judge(**anonymous, topic="elsewhere", records=TOO_LARGE).reason


def test_every_verdict_is_in_one_of_the_tables() -> None:
    answers = {verdict for row in DOCUMENT["Verdicts"].table() for verdict in ticked(row[1])}
    others = {verdict for row in DOCUMENT["Verdicts of other requests"].table() for verdict in ticked(row[0])}

    assert not answers & others
    assert (answers | others) - {"committed", "duplicate"} == set(typing.get_args(replies.Verdict))


def _plain(value: object) -> object:
    match value:
        case bytes():
            return {"bin": value.hex()}
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
    return value
