"""How a consumer handles late, doubled, lost and reordered messages about its segments."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from headgate.client.decisions.held_segments import Changes, HeldSegments, finish_seconds
from headgate.protocol.replies import AssignmentChanged, Grant, Registered, Revocation

Message = tuple[int, Registered] | AssignmentChanged


def grant(segment: int, generation: int) -> Grant:
    return Grant(segment=segment, generation=generation, first_hash=0, last_hash=9, start_offset=0, start_chunk=1)


def registered(*grants: Grant, epoch: int = 1) -> tuple[int, Registered]:
    reply = Registered(
        topic_id=1, subscription_id=2, grants=list(grants), head=1, blocked=0, heartbeat_interval_seconds=5.0
    )
    return epoch, reply


def pushed(*, granted: Iterable[Grant] = (), revoked: Iterable[Revocation] = (), epoch: int = 1) -> AssignmentChanged:
    who = {"topic": "t", "subscription": "s", "consumer": "c", "incarnation": 1}
    return AssignmentChanged(**who, leader_epoch=epoch, granted=list(granted), revoked=list(revoked))


def holding(*grants: Grant, epoch: int = 1) -> HeldSegments:
    assignment = HeldSegments()
    assignment.registration_requested()
    assignment.registered(*registered(*grants, epoch=epoch))
    return assignment


REVOKED, FINALLY_REVOKED = (Revocation(segment=0, generation=3, final=final) for final in (False, True))
LATER, OTHER = Revocation(segment=0, generation=4), grant(1, 3)
HISTORIES = {
    "the same generation after a leader change": ([registered(grant(0, 3), OTHER, epoch=2)], Changes()),
    "a higher generation": ([registered(grant(0, 4), OTHER)], Changes(stop=[(0, 3)], start=[grant(0, 4)])),
    "an unlisted holding": ([registered(OTHER)], Changes(stop=[(0, 3)])),
    "a list of an older epoch": ([registered(epoch=0)], Changes()),
    "a push of an older epoch": ([pushed(granted=[grant(2, 9)], epoch=0)], Changes()),
    "a revocation of an older generation": ([pushed(revoked=[Revocation(segment=0, generation=2)])], Changes()),
    # The later grant never arrived, and the leader fenced the earlier one before it.
    "a revocation of a later generation": ([pushed(revoked=[LATER])], Changes(stop=[(0, 3)], confirm=[LATER])),
    "a final revocation of a segment that is being finished": (
        [pushed(revoked=[REVOKED]), pushed(revoked=[FINALLY_REVOKED])],
        Changes(stop=[(0, 3)]),
    ),
    # A broker has doubled it.
    "a grant after its final revocation": (
        [pushed(revoked=[FINALLY_REVOKED]), pushed(granted=[grant(0, 3)])],
        Changes(),
    ),
    "a lost grant that is pushed again": (
        [registered(OTHER), pushed(granted=[grant(0, 3)])],
        Changes(start=[grant(0, 3)]),
    ),
}


@pytest.mark.parametrize(("messages", "changes"), HISTORIES.values(), ids=HISTORIES)
def test_the_last_of_some_messages_changes_what_is_held(messages: list[Message], changes: Changes):
    assignment = holding(grant(0, 3), OTHER)
    for each in messages:
        found = assignment.registered(*each) if isinstance(each, tuple) else assignment.changed(each)
    assert changes == found


@pytest.mark.parametrize("lease_ended", [True, False])
@pytest.mark.parametrize("listed", [True, False])
def test_a_late_copy_of_a_grant_begins_nothing_once_a_list_lacks_it(listed: bool, lease_ended: bool):
    assignment = holding(grant(0, 3))
    if lease_ended:
        assert Changes(stop=[(0, 3)]) == assignment.drop_all()
    assignment.registration_requested()
    assignment.registered(*registered(*[grant(0, 3)] * listed))
    assert Changes() == assignment.changed(pushed(granted=[grant(0, 3)]))
    assert (0, 3) in assignment.held or not listed
    assert Changes(stop=[(0, 3)] * listed, start=[grant(0, 4)]) == assignment.changed(pushed(granted=[grant(0, 4)]))


def test_a_list_older_than_a_grant_does_not_drop_it():
    assignment = holding(grant(0, 1))
    assignment.registration_requested()
    assignment.changed(pushed(granted=[grant(1, 1)]))
    assert Changes() == assignment.registered(*registered(grant(0, 1)))
    assignment.registration_requested()
    assert Changes(stop=[(1, 1)]) == assignment.registered(*registered(grant(0, 1)))


def test_a_segment_that_is_being_finished_continues_although_it_is_not_listed():
    assignment = holding(grant(0, 1))
    assignment.changed(pushed(revoked=[Revocation(segment=0, generation=1)]))
    assignment.registration_requested()
    assert Changes() == assignment.registered(*registered())


def test_a_revocation_before_its_grant_is_confirmed_and_the_grant_ignored():
    assignment = holding()
    revocation = Revocation(segment=0, generation=3)
    assert Changes(confirm=[revocation]) == assignment.changed(pushed(revoked=[revocation]))
    assert Changes() == assignment.changed(pushed(granted=[grant(0, 3)]))
    assert Changes(confirm=[revocation]) == assignment.changed(pushed(revoked=[revocation])), "it was lost"


def test_a_released_grant_is_ignored():
    assignment = holding(grant(0, 3))
    assignment.confirmed(Revocation(segment=0, generation=3))
    assert {} == assignment.held
    assert Changes() == assignment.changed(pushed(granted=[grant(0, 3)]))
    assert Changes() == assignment.registered(*registered(grant(0, 3)))
    assert Changes(start=[grant(0, 4)]) == assignment.changed(pushed(granted=[grant(0, 4)]))


def test_an_evicted_consumer_holds_nothing():
    assignment = holding(grant(0, 3), grant(1, 1))
    assert Changes(stop=[(0, 3), (1, 1)]) == assignment.drop_all()
    assert {} == assignment.held


def bucket_range(first_bucket: int, end_bucket: int, generation: int) -> Grant:
    return replace(grant(0, generation), first_bucket=first_bucket, end_bucket=end_bucket)


def revocation(
    first_bucket: int, end_bucket: int, generation: int, *, final: bool = False, segment: int = 0
) -> Revocation:
    return Revocation(
        segment=segment, generation=generation, final=final, first_bucket=first_bucket, end_bucket=end_bucket
    )


def test_two_bucket_ranges_of_one_segment_are_held_together():
    assignment = holding(bucket_range(0, 8, 3))
    high = bucket_range(8, 16, 2)
    assert Changes(start=[high]) == assignment.changed(pushed(granted=[high]))
    assert Changes() == assignment.registered(*registered(bucket_range(0, 8, 3), high))
    assert Changes(finish=[revocation(0, 8, 3)]) == assignment.changed(pushed(revoked=[revocation(0, 8, 3)]))
    assert {(0, 2), (0, 3)} == assignment.held.keys()
    released = holding()
    released.changed(pushed(revoked=[revocation(0, 8, 3)]))
    assert Changes(start=[high]) == released.changed(pushed(granted=[high])), "its buckets were not released"


def test_a_later_grant_of_one_bucket_drops_the_fenced_bucket_range():
    changes = holding(bucket_range(0, 8, 3), bucket_range(8, 16, 4)).changed(pushed(granted=[grant(0, 7)]))
    assert Changes(stop=[(0, 3), (0, 4)], start=[grant(0, 7)]) == changes
    assert Changes() == holding(bucket_range(0, 8, 3)).changed(pushed(granted=[grant(0, 2)]))


def test_a_bucket_range_that_is_being_finished_yields_to_a_listed_one():
    assignment = holding(bucket_range(0, 8, 3))
    assignment.changed(pushed(revoked=[revocation(0, 8, 3)]))
    assert Changes(stop=[(0, 3)], start=[bucket_range(0, 4, 5)]) == assignment.registered(
        *registered(bucket_range(0, 4, 5))
    )


def test_a_grant_that_was_fenced_before_it_arrived_is_ignored():
    """A leader that does not know a holding cannot name its buckets."""
    assignment = holding(bucket_range(8, 16, 2))
    assert Changes() == assignment.changed(pushed(revoked=[revocation(0, 0, 3, final=True)]))
    assert Changes() == assignment.changed(pushed(granted=[bucket_range(0, 8, 3)]))
    assert Changes(start=[bucket_range(0, 8, 1)]) == assignment.changed(pushed(granted=[bucket_range(0, 8, 1)]))


def test_a_thousand_grants_that_were_fenced_before_they_arrived_are_remembered():
    assignment = holding()
    for generation in range(1, 1002):
        assignment.changed(pushed(revoked=[revocation(0, 0, generation, final=True)]))

    assert Changes() == assignment.changed(pushed(granted=[grant(0, 2)])), "the first of the latest thousand"
    assert Changes(start=[grant(0, 1)]) == assignment.changed(pushed(granted=[grant(0, 1)]))


def test_revocations_before_the_first_list_count_after_it_and_grants_do_not():
    """A list of the same leader may be older or newer than such a push."""
    assignment = HeldSegments()
    pushes = [
        pushed(granted=[grant(0, 1)]),
        pushed(revoked=[revocation(0, 0, 2, segment=1), revocation(0, 0, 4, final=True, segment=2)]),
    ]
    assert [Changes(), Changes()] == [assignment.changed(each) for each in pushes]

    changes = assignment.registered(*registered(grant(1, 2), grant(2, 5), grant(3, 6)))

    assert Changes(confirm=[revocation(0, 0, 2, segment=1)], start=[grant(2, 5), grant(3, 6)]) == changes
    assert {(2, 5), (3, 6)} == assignment.held.keys()
    # They count once, and later pushes count at once.
    last = revocation(0, 0, 6, segment=3)
    assert Changes() == assignment.registered(*registered(grant(2, 5), grant(3, 6)))
    assert Changes(finish=[last]) == assignment.changed(pushed(revoked=[last]))


def test_an_early_revocation_of_an_earlier_leader_does_not_count():
    assignment = HeldSegments()
    assignment.changed(pushed(revoked=[revocation(0, 0, 1)]))

    assert Changes(start=[grant(0, 1)]) == assignment.registered(*registered(grant(0, 1), epoch=2))


def test_a_thousand_early_revocations_are_kept():
    assignment = HeldSegments()
    for segment in range(1100):
        assignment.changed(pushed(revoked=[revocation(0, 0, 1, segment=segment)]))

    changes = assignment.registered(*registered())

    assert [revocation(0, 0, 1, segment=segment) for segment in range(1000)] == changes.confirm


@pytest.mark.parametrize(
    ("limit_seconds", "waits_seconds"),
    [
        pytest.param(120, 110, id="long: ten seconds remain"),
        pytest.param(30, 20, id="both"),
        pytest.param(3, 2, id="short: a third remains"),
    ],
)
def test_a_consumer_stops_waiting_for_acknowledgements_before_the_leader_fences_it(limit_seconds, waits_seconds):
    assert waits_seconds == finish_seconds(limit_seconds)
