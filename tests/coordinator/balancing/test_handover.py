"""The handover, rule by rule, then random interleavings of targets, confirmations, timeouts and leaves."""

from hypothesis import given
from hypothesis import strategies as st

from coordinator.balancing.handover import HandoverState, Moves, plan, timed_out
from coordinator.state.subscription import Holding
from headgate.model.bucket_ranges import BucketRange

BOTH = {"ada", "bob"}


def held(consumer: str, generation: int = 1, revoked_at_ms: int | None = None) -> Holding:
    return Holding(consumer, generation, revoked_at_ms)


def test_rule_1_a_free_segment_is_granted() -> None:
    assert Moves(grants=((0, "ada"),)) == plan(HandoverState({0: "ada"}, {}, BOTH))


def test_rule_1_a_held_segment_is_revoked_and_not_granted() -> None:
    assert Moves(revocations=(0,)) == plan(HandoverState({0: "bob"}, {0: held("ada")}, BOTH))


def test_rule_1_a_released_segment_is_granted_in_the_same_step() -> None:
    moves = plan(HandoverState({0: "bob"}, {0: held("ada", revoked_at_ms=5)}, BOTH, confirmed={0}))

    assert Moves(releases=((0, "confirmed"),), grants=((0, "bob"),)) == moves


def test_rule_1_a_bucket_range_waits_for_all_holders_of_its_buckets() -> None:
    low, high = BucketRange(0, 0, 8), BucketRange(0, 8, 16)
    target = {low: "ada", high: "bob"}

    assert Moves(revocations=(0,)) == plan(HandoverState(target, {0: held("ada")}, BOTH))
    cut = plan(HandoverState(target, {0: held("ada", revoked_at_ms=5)}, BOTH, confirmed={0}))
    assert Moves(releases=((0, "confirmed"),), grants=((low, "ada"), (high, "bob"))) == cut
    halves = {low: held("ada", revoked_at_ms=5), high: held("bob", revoked_at_ms=5)}
    assert Moves(releases=((low, "confirmed"),)) == plan(HandoverState({0: "ada"}, halves, BOTH, confirmed={low}))
    joined = plan(HandoverState({0: "ada"}, halves, BOTH, confirmed={low, high}))
    assert ((0, "ada"),) == joined.grants


def test_rule_1_other_buckets_and_segments_do_not_delay_a_grant() -> None:
    low, high = BucketRange(0, 0, 8), BucketRange(0, 8, 16)
    holdings = {low: held("ada", revoked_at_ms=5), 1: held("ada", revoked_at_ms=5)}

    assert Moves(grants=((high, "bob"),)) == plan(HandoverState({high: "bob"}, holdings, BOTH))


def test_rule_2_a_bucket_range_of_a_retired_segment_is_released_at_once() -> None:
    moves = plan(HandoverState({}, {BucketRange(0, 0, 8): held("ada")}, BOTH, retired={0}))

    assert Moves(releases=((BucketRange(0, 0, 8), "drained"),)) == moves


def test_rule_2_a_retired_segment_is_released_at_once_even_while_revoked() -> None:
    for holding in (held("ada"), held("ada", revoked_at_ms=5)):
        assert Moves(releases=((0, "drained"),)) == plan(HandoverState({}, {0: holding}, BOTH, retired={0}))


def test_rule_3_a_removed_consumer_is_released() -> None:
    moves = plan(HandoverState({0: "bob"}, {0: held("removed")}, BOTH))

    assert Moves(releases=((0, "holder_left"),), grants=((0, "bob"),)) == moves


def test_rule_4_a_holder_that_times_out_is_released() -> None:
    moves = plan(HandoverState({0: "bob"}, {0: held("ada", revoked_at_ms=5)}, BOTH, timed_out={0}))

    assert Moves(releases=((0, "timed_out"),), grants=((0, "bob"),)) == moves


def test_rule_4_only_a_revoked_holder_can_confirm_or_time_out() -> None:
    standing = HandoverState({0: "ada"}, {0: held("ada")}, BOTH, confirmed={0}, timed_out={0})

    assert not plan(standing)


def test_rule_5_a_segment_that_may_not_be_read_is_revoked() -> None:
    """A child that is blocked again is revoked."""
    assert Moves(revocations=(0,)) == plan(HandoverState({}, {0: held("ada")}, BOTH))


def test_rules_5_and_6_a_revoked_holder_is_not_revoked_again() -> None:
    for owner in BOTH:
        assert not plan(HandoverState({0: owner}, {0: held("ada", revoked_at_ms=5)}, BOTH))


def test_rule_6_a_holder_that_owns_the_segment_again_must_confirm_first() -> None:
    moves = plan(HandoverState({0: "ada"}, {0: held("ada", revoked_at_ms=5)}, BOTH, confirmed={0}))

    assert Moves(releases=((0, "confirmed"),), grants=((0, "ada"),)) == moves


def test_rule_7_holdings_that_match_the_target_stay_untouched() -> None:
    moves = plan(HandoverState({0: "ada", 1: "bob", 2: "ada"}, {0: held("ada"), 1: held("bob")}, BOTH))

    assert Moves(grants=((2, "ada"),)) == moves
    assert not plan(HandoverState({0: "ada"}, {0: held("ada")}, BOTH))


def test_moves_are_sorted_by_segment_for_any_input_order() -> None:
    target = {3: "ada", 1: "bob", 2: "ada"}
    holdings = {9: held("ada"), 7: held("ada"), 8: held("removed"), 6: held("removed")}

    moves = plan(HandoverState(target, holdings, BOTH))

    assert ((6, "holder_left"), (8, "holder_left")) == moves.releases
    assert (7, 9) == moves.revocations
    assert ((1, "bob"), (2, "ada"), (3, "ada")) == moves.grants


def late(now_ms: int, waited_seconds: float, holding: Holding) -> frozenset[int]:
    return timed_out({0: holding}, now_ms=now_ms, timeout_seconds=30, waited_seconds={0: waited_seconds})


def test_the_confirmation_timeout_runs_by_the_ledgers_clock() -> None:
    """The new leader has seen the revocation for one second, the ledger for 30."""
    assert frozenset() == late(40_999, 1, held("ada", revoked_at_ms=11_000))
    assert {0} == late(41_000, 1, held("ada", revoked_at_ms=11_000))


def test_a_ledger_clock_ahead_does_not_extend_the_timeout() -> None:
    assert {0} == late(0, 30, held("ada", revoked_at_ms=11_000_000))
    assert frozenset() == late(0, 29.9, held("ada", revoked_at_ms=11_000_000))


def test_a_valid_grant_never_times_out() -> None:
    assert frozenset() == late(10**9, 10**6, held("ada"))
    assert frozenset() == timed_out({}, now_ms=10**9, timeout_seconds=30, waited_seconds={0: 10**6})


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("target"), st.dictionaries(st.integers(0, 3), st.sampled_from(["ada", "bob", "cyd"]))),
        st.tuples(st.sampled_from(["confirm", "time out", "retire"]), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.sampled_from(["ada", "bob", "cyd"])),
    ),
    max_size=30,
)


@given(EVENTS)
def test_no_segment_ever_has_two_holders(events: list) -> None:
    """Once all holders confirm, the holdings match the target."""
    consumers, target, retired = {"ada", "bob", "cyd"}, {}, set()
    holdings: dict[int, Holding] = {}
    generation = 0

    def reconcile(confirmed=frozenset(), late=frozenset()) -> Moves:
        nonlocal generation
        wanted = {s: owner for s, owner in target.items() if owner in consumers and s not in retired}
        moves = plan(HandoverState(wanted, holdings, consumers, retired, confirmed, late))
        for segment, why in moves.releases:
            released = holdings.pop(segment)
            assert released.revoked_at_ms is not None or why in ("drained", "holder_left")
        for segment in moves.revocations:
            assert holdings[segment].revoked_at_ms is None
            holdings[segment].revoked_at_ms = 0
        for segment, owner in moves.grants:
            assert segment not in holdings, "two holders at a time"
            assert segment not in retired
            generation += 1
            holdings[segment] = Holding(owner, generation)
        return moves

    for verb, what in events:
        if verb == "target":
            target = what
        elif verb == "retire":
            retired.add(what)
        elif verb == "leave":
            consumers.discard(what)
        reconcile({what} if verb == "confirm" else frozenset(), {what} if verb == "time out" else frozenset())

    reconcile(confirmed={s for s, holding in holdings.items() if holding.revoked_at_ms is not None})
    assert not reconcile()
    owners = {s: owner for s, owner in target.items() if owner in consumers and s not in retired}
    assert owners == {s: holding.consumer for s, holding in holdings.items()}
