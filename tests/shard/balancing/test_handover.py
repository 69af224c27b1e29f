"""The handover, rule by rule, then random interleavings of targets, confirmations, timeouts and leaves."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.layout import BucketRange
from shard.balancing.handover import HandoverState, Moves, plan
from shard.state.consumers import Holding

BOTH = {"ada", "bob"}
ADA, BOB, REMOVED = Holding("ada", 1), Holding("bob", 1), Holding("removed", 1)
ADA_REVOKED, BOB_REVOKED = Holding("ada", 1, 5), Holding("bob", 1, 5)
LOW, HIGH = BucketRange(0, 0, 8), BucketRange(0, 8, 16)
HALVES = {LOW: ADA_REVOKED, HIGH: BOB_REVOKED}


def case(name: str, target: dict, holdings: dict, releases=(), revocations=(), grants=(), **state) -> object:
    return pytest.param(HandoverState(target, holdings, BOTH, **state), Moves(releases, revocations, grants), id=name)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        case("1: a free segment is granted", {0: "ada"}, {}, grants=((0, "ada"),)),
        case("1: a held segment is revoked, not granted", {0: "bob"}, {0: ADA}, revocations=(0,)),
        case(
            "1: a released segment is granted in the same step",
            {0: "bob"},
            {0: ADA_REVOKED},
            confirmed={0},
            releases=((0, "confirmed"),),
            grants=((0, "bob"),),
        ),
        case("1: a segment is revoked before it is divided", {LOW: "ada", HIGH: "bob"}, {0: ADA}, revocations=(0,)),
        case(
            "1: a segment is divided once its holder has confirmed",
            {LOW: "ada", HIGH: "bob"},
            {0: ADA_REVOKED},
            confirmed={0},
            releases=((0, "confirmed"),),
            grants=((LOW, "ada"), (HIGH, "bob")),
        ),
        case("1: one half is not enough", {0: "ada"}, HALVES, confirmed={LOW}, releases=((LOW, "confirmed"),)),
        case(
            "1: halves are joined once both holders have confirmed",
            {0: "ada"},
            HALVES,
            confirmed={LOW, HIGH},
            releases=((LOW, "confirmed"), (HIGH, "confirmed")),
            grants=((0, "ada"),),
        ),
        case(
            "1: other buckets and segments do not delay a grant",
            {HIGH: "bob"},
            {LOW: ADA_REVOKED, 1: ADA_REVOKED},
            grants=((HIGH, "bob"),),
        ),
        case("2: a retired segment is released", {}, {0: ADA}, retired={0}, releases=((0, "drained"),)),
        case("2: also while it is revoked", {}, {0: ADA_REVOKED}, retired={0}, releases=((0, "drained"),)),
        case("2: also a bucket range of it", {}, {LOW: ADA}, retired={0}, releases=((LOW, "drained"),)),
        case(
            "3: a removed consumer is released",
            {0: "bob"},
            {0: REMOVED},
            releases=((0, "holder_left"),),
            grants=((0, "bob"),),
        ),
        case(
            "4: a holder that times out is released",
            {0: "bob"},
            {0: ADA_REVOKED},
            timed_out={0},
            releases=((0, "timed_out"),),
            grants=((0, "bob"),),
        ),
        case("4: only a revoked holder confirms or times out", {0: "ada"}, {0: ADA}, confirmed={0}, timed_out={0}),
        case("5: a segment that may not be read is revoked", {}, {0: ADA}, revocations=(0,)),
        case("5: a revoked holder is not revoked again", {0: "bob"}, {0: ADA_REVOKED}),
        case("6: a revoked holder is not granted the segment again", {0: "ada"}, {0: ADA_REVOKED}),
        case(
            "6: it must confirm first",
            {0: "ada"},
            {0: ADA_REVOKED},
            confirmed={0},
            releases=((0, "confirmed"),),
            grants=((0, "ada"),),
        ),
        case("7: a holding that matches the target stays", {0: "ada"}, {0: ADA}),
        case(
            "7: only differences are returned", {0: "ada", 1: "bob", 2: "ada"}, {0: ADA, 1: BOB}, grants=((2, "ada"),)
        ),
    ],
)
def test_rules(state: HandoverState, expected: Moves) -> None:
    assert expected == plan(state)


def test_moves_are_sorted_by_segment_for_any_input_order() -> None:
    target = {3: "ada", 1: "bob", 2: "ada"}
    holdings = {9: ADA, 7: ADA, 8: REMOVED, 6: REMOVED}

    moves = plan(HandoverState(target, holdings, BOTH))

    assert ((6, "holder_left"), (8, "holder_left")) == moves.releases
    assert (7, 9) == moves.revocations
    assert ((1, "bob"), (2, "ada"), (3, "ada")) == moves.grants


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
            holdings[segment] = replace(holdings[segment], revoked_at_ms=0)
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


def test_the_first_moves_are_releases_then_revocations_then_grants() -> None:
    moves = Moves(releases=((1, "drained"), (2, "drained")), revocations=(3, 4), grants=((1, "ada"), (2, "bob")))

    assert moves == moves.first(6)
    assert Moves(moves.releases, moves.revocations, ((1, "ada"),)) == moves.first(5)
    assert Moves(moves.releases, (3,)) == moves.first(3)
    assert Moves(((1, "drained"),)) == moves.first(1)
