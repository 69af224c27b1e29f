"""The rules of leadership safety, one table each."""

from itertools import product

import pytest

from controller.leadership.policy import safety
from controller.leadership.policy.transitions import Event, Leadership, Role
from headgate import errors

FAILURES: dict[type[Exception], Event] = {
    errors.ObjectExistsError: Event.NUMBER_TAKEN,
    errors.OutcomeUnknownError: Event.OUTCOME_UNKNOWN,
    errors.NotDurableError: Event.OUTCOME_UNKNOWN,
    TimeoutError: Event.OUTCOME_UNKNOWN,
    errors.StoreUnavailableError: Event.STORE_UNREACHABLE,
    errors.LedgerError: Event.LEDGER_UNREADABLE,
    errors.ForeignObjectError: Event.LEDGER_UNREADABLE,
}


@pytest.mark.parametrize(("error", "event"), FAILURES.items())
def test_rules_1_to_3_a_failure_means_what_is_known_about_the_chunk(error: type[Exception], event: Event) -> None:
    assert issubclass(error, safety.FAILURES)
    assert safety.failure(error("chunk 7")) is event


@pytest.mark.parametrize("failed", FAILURES.values())
def test_rule_3_only_a_write_that_has_not_happened_is_repeated_and_not_permanently(failed: Event) -> None:
    for trying_seconds in (0.0, 15.0):
        assert safety.repeats_write(failed, trying_seconds, 15.0) == (failed is Event.STORE_UNREACHABLE)
    assert not safety.repeats_write(failed, 15.1, 15.0)


@pytest.mark.parametrize(
    ("snapshots", "expected"), [((), False), ((3, 6), False), ((3, 7), True), ((3, 8), True), ((8, 3), True)]
)
def test_rule_4_a_number_that_a_snapshot_includes_starts_no_term(snapshots: tuple[int, ...], expected: bool) -> None:
    assert safety.starts_no_term(7, snapshots) is expected


@pytest.mark.parametrize(
    ("listed", "expected"), [((), True), ((5, 6), True), ((5, 6, 8), False), ((7,), False)], ids=str
)
def test_rule_5_a_missing_number_is_the_end_if_no_later_chunk_exists(listed: tuple[int, ...], expected: bool) -> None:
    assert safety.is_end(6, listed) is expected


def test_rule_6_an_idle_leader_looks_each_second_while_a_contender_may_begin_a_term() -> None:
    pauses = [safety.look_pause_seconds(looks, contended=False) for looks in range(12)]

    assert (pauses[0], pauses[-1], pauses) == (1.0, 240.0, sorted(pauses))
    assert {safety.look_pause_seconds(looks, contended=True) for looks in range(12)} == {1.0}


@pytest.mark.parametrize(("snapshot", "expected"), [(0, True), (6, True), (7, False), (9, False)])
def test_rule_5_a_missing_number_that_no_snapshot_includes_is_a_hole(snapshot: int, expected: bool) -> None:
    assert safety.is_hole(6, snapshot) is expected


@pytest.mark.parametrize(("durable", "idle"), [(6, True), (7, True), (6, False), (7, False)])
def test_rule_6_a_chunk_is_anothers_if_the_leader_wrote_none_meanwhile(durable: int, idle: bool) -> None:
    assert safety.is_successors(7, durable=durable, idle=idle) == (durable == 6 and idle)


@pytest.mark.parametrize(("away_seconds", "expected"), [(0.0, False), (15.0, False), (15.1, True)])
def test_rule_7_a_term_outlasts_a_short_absence_of_the_servers(away_seconds: float, expected: bool) -> None:
    assert safety.unreachable_too_long(away_seconds, 15.0) is expected


@pytest.mark.parametrize(("reaches_broker", "in_contact", "waited"), [*product((True, False), repeat=3)])
def test_rule_7_a_term_begins_with_the_broker(reaches_broker: bool, in_contact: bool, waited: bool) -> None:
    begins = safety.begins_term(Leadership(in_contact=in_contact), reaches_broker=reaches_broker, waited=waited)
    assert begins == (reaches_broker and (in_contact or not waited))


@pytest.mark.parametrize(("role", "holds_lock", "in_contact"), [*product(Role, (True, False), (True, False))])
def test_rule_8_only_a_leader_without_lock_or_contact_yields(role: Role, holds_lock: bool, in_contact: bool) -> None:
    leadership = Leadership(role, holds_lock=holds_lock, in_contact=in_contact)

    assert safety.yields_to_contender(leadership) == (role is Role.LEADING and not (holds_lock and in_contact))


@pytest.mark.parametrize(
    ("loses", "regains"), [(Event.CONTACT_LOST, Event.CONTACT_REGAINED), (Event.LOCK_LOST, Event.LOCK_ACQUIRED)]
)
def test_rule_8_a_leader_yields_until_it_has_both_again(loses: Event, regains: Event) -> None:
    lonely, actions = Leadership(Role.LEADING, holds_lock=True).on(loses)

    assert not actions, "the term continues"
    assert safety.yields_to_contender(lonely)
    assert not safety.yields_to_contender(lonely.on(regains)[0])
