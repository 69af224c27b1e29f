"""What a STREAM parks and resumes, rule by rule."""

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.model import entries as e
from headgate.model.layout import BucketRange, segment_hash, slice_fields
from headgate.protocol.requests import AcknowledgeBatch, Acknowledgement, ParkedRecord, ParkKey, ResumedKey, UnparkKey
from shard.state.redelivery import ParkedKey
from shard.subscriptions import acknowledgements
from shard.subscriptions.parking import ParkedInBatch, has_key, judge_park, judge_unpark, resuming_keys
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import CoordinatorHarness

IDS: dict[str, Any] = {"topic_id": 1, "subscription_id": 2}
ADA: dict[str, Any] = {"topic": "orders", "subscription": "billing", "consumer": "ada", "incarnation": 1}
LOW, HIGH = b"57882", b"24539"
"""The last hash of segment 0, and the first one of segment 1."""
OTHER = next(key for key in (b"%d" % n for n in range(999)) if segment_hash(key) < 0x7FFF)


@pytest.fixture
async def harness(lead: Lead) -> CoordinatorHarness:
    """Consumer ada holds segments 0 and 1 with records. Key LOW is parked, and three records are acknowledged."""
    harness = lead("ada", segments=2, records=18, type="STREAM")
    assert harness.acknowledge("ada", 0, 3) is None
    policy = e.DeliveryPolicy(dead_letter_topic="dead")
    harness.propose(e.DeliveryPolicySet(**IDS, policy=policy, token="p"))
    harness.propose(e.KeyParked(**IDS, key=LOW, reason="poison"))
    return harness


def generation(harness: CoordinatorHarness, segment: int = 0) -> int:
    return harness.subscription.holdings[segment].generation


def state(harness: CoordinatorHarness, key: bytes = LOW) -> ParkedKey:
    return harness.subscription.redelivery.parked.keys[key]


def park(harness: CoordinatorHarness, limit: int = 9, **other: Any) -> e.KeyParked | str | None:
    segment = other.get("segment", 0)
    fields = {**ADA, "segment": segment, "generation": generation(harness, segment), "offset": 5, "key": OTHER, **other}
    return judge_park(harness.subscription, harness.topic, ParkKey(**fields), limit)


def acknowledge(
    harness: CoordinatorHarness, *ends: int, parked: tuple[int, ...] = (), key=LOW, resumed: Any = (), segment=0
) -> tuple[list[tuple[int, int, bytes]], list[tuple[bytes, int]], str]:
    """Acknowledge a segment to ``ends``, with the offsets ``parked``; return what is parked and resumed, or why not."""
    held = segment, generation(harness, segment)
    batch = AcknowledgeBatch(
        **ADA,
        acknowledgements=[Acknowledgement(*held, 0, end) for end in ends],
        parked=[ParkedRecord(*held, each, key) for each in parked],
        resumed=[ResumedKey(*held, *each) for each in resumed],
    )
    judged = acknowledgements.judge(harness.subscription, harness.topic, batch)
    if judged.entry is None:
        return [], [], judged.rejected[0][1]
    harness.propose(*judged.parked_again, judged.entry)
    return judged.entry.parked, judged.entry.resumed, ""


@pytest.mark.parametrize(
    ("other", "outcome"),
    [
        ({}, e.KeyParked(**IDS, key=OTHER, reason="")),
        ({"offset": 3}, e.KeyParked(**IDS, key=OTHER, reason="")),
        ({"key": HIGH, "segment": 1}, e.KeyParked(**IDS, key=HIGH, reason="")),
        ({"key": LOW}, None),
        ({"offset": 2}, None),
        ({"key": LOW, "number": 1}, None),
        ({"consumer": "eve"}, None),
        ({"incarnation": 0}, None),
        ({"generation": 99}, None),
        ({"offset": 18}, "has no offset 18 with this key"),
        ({"key": HIGH}, "has no offset 5 with this key"),
        ({"limit": 1}, "has 1 parked keys, the most that are kept"),
    ],
)
async def test_a_key_is_parked_by_its_holder(harness: CoordinatorHarness, other: Any, outcome: Any) -> None:
    judged = park(harness, **other)
    assert outcome == judged if not isinstance(outcome, str) else outcome in str(judged)


async def test_a_key_without_a_dead_letter_topic_is_not_parked_nor_one_of_a_queue(harness, lead: Lead) -> None:
    queue = lead("ada", segments=2, records=18, type="QUEUE")
    assert "only a STREAM parks keys" in str(park(queue))
    assert ([], [], "") == acknowledge(queue, 3, parked=(1,))
    acknowledge(harness, 6, parked=(4,))
    harness.propose(e.KeyResumed(**IDS, key=LOW, dropped=False, token="r"))
    harness.propose(e.DeliveryPolicySet(**IDS, policy=e.DeliveryPolicy(), token="q"))
    again = park(harness, limit=1, key=LOW, number=1, offset=99)
    assert e.KeyParked(**IDS, key=LOW, reason="") == again, "a key that was parked before needs no space, nor a topic"
    assert "headgate subscription set orders billing --dead-letter TOPIC" in str(park(harness, offset=7))
    assert "dead" == state(harness).topic


async def test_a_parked_record_counts_once_with_what_covers_it(harness: CoordinatorHarness) -> None:
    assert ([(0, 4, LOW)], [], "") == acknowledge(harness, 6, parked=(2, 4, 6))
    assert ([(0, 6, LOW), (0, 7, LOW)], [], "") == acknowledge(harness, 7, 9, parked=(4, 6, 7))
    assert (3, 9) == (state(harness).records, harness.subscription.position(0))
    assert not harness.subscription.redelivery.parked.resuming
    dead = harness.subscription.redelivery.dead
    assert {1: (0, 4), 2: (0, 6), 3: (0, 7)} == dead
    harness.propose(e.ParkedRecordsStored(**IDS, numbers=[1, 2, 3]))
    assert (3, {}) == (state(harness).records, dead)


async def test_a_segment_keeps_as_many_parked_records_as_its_limit(harness: CoordinatorHarness) -> None:
    held = 0, generation(harness)
    batch = AcknowledgeBatch(**ADA, acknowledgements=[], parked=[ParkedRecord(*held, each, LOW) for each in (3, 4, 5)])
    judged = ParkedInBatch(harness.subscription, harness.topic, batch, 2)

    accepted = [judged.accept(Acknowledgement(*held, 0, end), 0) for end in (4, 5, 6)]
    assert [None, None] == accepted[:2]
    assert "segment 0 has 2 parked records" in str(accepted[2])
    acknowledge(harness, 6, parked=(3, 4, 5))
    alone = ParkedInBatch(harness.subscription, harness.topic, AcknowledgeBatch(**ADA, acknowledgements=[]), 2)
    assert alone.accept(Acknowledgement(*held, 0, 7), 0) is None, "it parks none, and the limit was higher before"


async def test_an_acknowledgement_is_refused_with_a_record_whose_key_is_not_parked(harness: CoordinatorHarness) -> None:
    harness.propose(e.DeliveryPolicySet(**IDS, policy=e.DeliveryPolicy(), token="q"))
    harness.propose(e.KeyParked(**IDS, key=HIGH, reason=""))
    for key in (OTHER, HIGH):
        reason = acknowledge(harness, 6, parked=(4,), key=key)[2]
        assert "offset 4 of segment 0 is not of a key that is parked there" == reason
    assert 3 == harness.subscription.position(0)
    assert ([(0, 4, LOW)], [], "") == acknowledge(harness, 6, parked=(4,)), "a key that is parked needs no topic"


async def test_what_another_holder_parks_after_the_end_parks_its_key_again_and_resumes_it(
    harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shard.subscriptions.parking.MAX_PARKED_KEYS", 1)
    assert "offset 4 of segment 0 is not of a key" in acknowledge(harness, 6, parked=(4,), key=OTHER)[2]
    monkeypatch.undo()
    assert ([(0, 4, OTHER)], [], "") == acknowledge(harness, 6, parked=(4,), key=OTHER)
    assert (1, True) == (state(harness, OTHER).records, OTHER in harness.subscription.redelivery.parked.resuming)


async def test_a_dropped_record_is_parked_again_after_a_seek_once_its_first_copy_is_stored(
    harness: CoordinatorHarness,
) -> None:
    """Under the number of the first copy its key would pass over it."""
    acknowledge(harness, 6, parked=(4,))
    harness.propose(e.KeyResumed(**IDS, key=LOW, dropped=True, token="r"), e.KeyUnparked(**IDS, key=LOW))
    harness.propose(e.SubscriptionSeek(**IDS, seek_generation=1, positions={0: 0}, token="s"))
    harness.coordinator.positions_changed({})
    assert "not yet in the dead-letter topic" in acknowledge(harness, 6, parked=(4,))[2]
    harness.propose(e.KeyParked(**IDS, key=LOW, reason="again"))
    assert "not yet in the dead-letter topic" in acknowledge(harness, 6, parked=(4,))[2]
    harness.propose(e.ParkedRecordsStored(**IDS, numbers=[1]))
    assert ([(0, 4, LOW)], [], "") == acknowledge(harness, 6, parked=(4,))
    assert 1 == state(harness).records


@pytest.mark.parametrize("ends", [(9,), (6, 9)], ids=["at once", "one by one"])
async def test_parked_records_of_which_some_are_not_stored_keep_their_order_after_a_seek_back(
    harness: CoordinatorHarness, ends: tuple[int, ...]
) -> None:
    """Record 5 is in the dead-letter topic and 8 is not: 5 gets a new number, and 8 must not keep one before it."""
    acknowledge(harness, 9, parked=(5, 8))
    harness.propose(e.ParkedRecordsStored(**IDS, numbers=[1]))
    harness.propose(e.SubscriptionSeek(**IDS, seek_generation=1, positions={0: 0}, token="s"))
    harness.coordinator.positions_changed({})
    answers = [acknowledge(harness, end, parked=(5, 8)[: 1 + (end == 9)]) for end in ends]
    assert "not yet in the dead-letter topic" in answers[-1][2]
    harness.propose(e.ParkedRecordsStored(**IDS, numbers=[2]))
    acknowledge(harness, 9, parked=(5, 8))
    numbers = {offset: each.number for offset, each in harness.subscription.redelivery.attempts[0].items()}
    assert {5: 3, 8: 4} == numbers


async def test_a_resumed_key_ends_once_all_its_records_are_processed(harness: CoordinatorHarness) -> None:
    parking = state(harness).number

    def unpark(last: int, parking: int = parking, segment: int = 0, **other: Any) -> Any:
        held = {"segment": segment, "generation": generation(harness, segment), "key": LOW}
        request = UnparkKey(**{**ADA, **held, **other}, parking=parking, last=last)
        return judge_unpark(harness.subscription, harness.topic, request)

    harness.propose(e.KeyParked(**IDS, key=HIGH, reason="another one, which is not resumed"))
    assert "were not processed" in unpark(0), "it is not resumed"
    acknowledge(harness, 6, parked=(4, 5))
    harness.propose(e.KeyResumed(**IDS, key=LOW, dropped=False, token="r"))
    (named,) = resuming_keys(harness.subscription, harness.topic, "ada")
    assert (LOW, 0, 2, 0) == (named.key, named.number, named.last, named.stored)
    harness.propose(e.ParkedRecordsStored(**IDS, numbers=[1]))
    assert [1] == [each.stored for each in resuming_keys(harness.subscription, harness.topic, "ada")]

    assert "were not processed" in unpark(2)
    alone = AcknowledgeBatch(**ADA, acknowledgements=[], resumed=[ResumedKey(0, generation(harness), LOW, 2)])
    assert [] == ParkedInBatch(harness.subscription, harness.topic, alone, 9).resumed, "its holding is not confirmed"
    assert ([], [], "") == acknowledge(harness, 1, resumed=((LOW, 2),), segment=1), "it has other keys"
    assert ([], [(LOW, 2)], "") == acknowledge(harness, 6, resumed=((LOW, 2), (LOW, 1), (LOW, 3), (OTHER, 1)))
    assert ([], [], "") == acknowledge(harness, 7, resumed=((LOW, 1), (LOW, 2))), "a late copy moves nothing back"
    assert "were not processed" in unpark(1)
    assert "were not processed" in unpark(2, segment=1)
    assert isinstance(unpark(2, consumer="eve"), str)
    assert park(harness, key=LOW, number=2) is None, "it was processed"
    assert unpark(2, parking=parking + 1) is None
    ended = unpark(2)
    assert e.KeyUnparked(**IDS, key=LOW) == ended
    harness.propose(ended)
    assert unpark(2) is None
    assert not harness.subscription.redelivery.parked.resuming
    assert [HIGH] == harness.subscription.redelivery.parked.within(0, 0xFFFF)
    harness.propose(e.KeyParked(**IDS, key=LOW, reason="poison"))
    assert (2, 2, 3) == (state(harness).last, state(harness).resumed, state(harness).number)


async def test_a_dropped_key_is_resumed_behind_its_records(harness: CoordinatorHarness) -> None:
    acknowledge(harness, 6, parked=(4,))
    harness.propose(e.KeyResumed(**IDS, key=LOW, dropped=True, token="r"))
    (named,) = resuming_keys(harness.subscription, harness.topic, "ada")
    assert (1, 1) == (named.number, named.last)
    before = state(harness)
    harness.propose(e.KeyParked(**IDS, key=LOW, reason="again"))
    assert replace(before, number=2, reason="again") == state(harness)
    assert [] == resuming_keys(harness.subscription, harness.topic, "ada")


async def test_a_grant_names_the_parked_keys_of_its_part(harness: CoordinatorHarness) -> None:
    harness.propose(e.KeyParked(**IDS, key=HIGH, reason=""))
    parked = harness.subscription.redelivery.parked
    assert ([LOW], [HIGH]) == (parked.within(0, 0x7FFF), parked.within(0x8000, 0xFFFF))
    [other] = [each for each in (BucketRange(0, 0, 8), BucketRange(0, 8, 16)) if not has_key(harness.topic, each, LOW)]
    harness.propose(e.KeyResumed(**IDS, key=LOW, dropped=False, token="r"))
    harness.subscription.holdings.release(0)
    grant = e.SegmentGranted(**IDS, **slice_fields(other), consumer="ada", generation=9)
    harness.subscription.holdings.grant(grant, 0)
    assert [] == resuming_keys(harness.subscription, harness.topic, "ada")


async def test_a_seek_and_retention_keep_what_is_not_in_the_dead_letter_topic(harness: CoordinatorHarness) -> None:
    acknowledge(harness, 6, parked=(4,))
    subscription = harness.subscription
    harness.propose(e.SubscriptionSeek(**IDS, seek_generation=1, positions={0: 0}, token="s"))
    subscription.redelivery.park(0, 4, LOW, 9)  # It is read and parked once more.
    assert {1: (0, 4)} == subscription.redelivery.dead
    subscription.forget_segments({0: 9})
    assert ({}, 10) == (subscription.redelivery.dead, subscription.dropped_records)


async def test_a_key_that_is_being_resumed_is_named_until_that_ends_however_many_are_resumed_later(
    harness: CoordinatorHarness,
) -> None:
    """A consumer takes the resumption of a key that is named no more for ended."""
    harness.propose(e.KeyResumed(**IDS, key=LOW, dropped=False, token="r"))
    lower = [key for key in (b"%d" % n for n in range(999)) if segment_hash(key) < segment_hash(LOW)][:100]
    for key in lower:
        harness.propose(e.KeyParked(**IDS, key=key, reason="poison"))
        harness.propose(e.KeyResumed(**IDS, key=key, dropped=False, token="r"))

    named = [each.key for each in resuming_keys(harness.subscription, harness.topic, "ada")]
    assert (100, LOW) == (len(named), named[0])
