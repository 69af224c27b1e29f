"""What a consumer knows of a history, judged by a leader."""

import random
from itertools import count

import pytest

from headgate.model import entries as e
from headgate.model.positions import KnownHistory
from headgate.protocol.requests import Heartbeat
from shard.requests.verdicts import judge_history
from shard.state.shard_state import ShardState

History = list[int]
"""The term id of each chunk, from chunk 1 on."""


def accepts(history: History, known: KnownHistory) -> bool:
    """Return whether a leader with ``history`` accepts what a consumer knows."""
    state = ShardState(0)
    for chunk, term_id in enumerate(history, 1):
        begins = term_id != state.terms.newest_id
        state.apply_all(
            [e.TermStarted(leader_epoch=1, instance="a", term_id=term_id)] if begins else [], chunk=chunk, at_ms=0
        )
    beat = Heartbeat(topic="t", subscription="s", consumer="c", incarnation=1, history=known.points)
    refusal = judge_history(beat, state)
    assert refusal is None or (refusal.verdict, refusal.after_barrier) == ("other_history", True)
    return refusal is None


def add(known: KnownHistory, history: History, chunk: int) -> None:
    known.add(chunk, history[chunk - 1], history[chunk - 2] if chunk > 1 else 0)


@pytest.mark.parametrize("seed", range(60))
def test_a_leader_accepts_a_consumer_exactly_if_all_that_it_has_seen_is_in_the_history(seed: int) -> None:
    """Readers are at several places, leaders confirm, and the ledger is put back between the steps."""
    rng, term_ids = random.Random(seed), count(1)
    history: History = [next(term_ids)]
    known, seen = KnownHistory(), set[tuple[int, int]]()
    refused = 0
    for _ in range(120):
        match rng.choice(("grow", "grow", "term", "read", "read", "read", "ask", "put back")):
            case "grow":
                history += [history[-1]] * rng.randrange(1, 4)
            case "term":
                history.append(next(term_ids))
            case "read":
                first = rng.randrange(1, len(history) + 1)
                for chunk in range(first, min(len(history), first + rng.randrange(4)) + 1):
                    add(known, history, chunk)
                    seen.add((chunk, history[chunk - 1]))
            case "put back" if rng.random() < 0.3:
                history = [*history[: rng.randrange(1, len(history) + 1)], next(term_ids)]
            case "ask":
                points = known.points
                right = all(chunk <= len(history) and history[chunk - 1] == term for chunk, term in seen)
                assert right == accepts(history, known)
                if right:
                    known.confirmed(points, len(history), history[-1])
                    seen.add((len(history), history[-1]))
                else:
                    refused += 1
                    known, seen = KnownHistory(), set()
    assert refused or seed  # Of the first seed it is known that it puts back what was read.


def test_reading_through_many_terms_leaves_one_point() -> None:
    known, history = KnownHistory(), [1, 1, 2, 3, 3, 4]
    for chunk in range(1, 7):
        add(known, history, chunk)

    assert [(6, 4)] == known.points
    assert 6 == known.newest
