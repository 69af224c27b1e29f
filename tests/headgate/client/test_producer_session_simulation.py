"""The session with random losses, doubles and leader changes: exactly once, in order, in time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.client.decisions.session_types import Outcome
from headgate.protocol import messages as m
from tests.support.fakes.leader_model import WINDOW, ProducerSessionSimulation

STEPS = 150


def run(
    seed: int,
    *,
    loss: float,
    doubling: float,
    reorder: bool,
    deadline: float,
    refusals: bool,
    invalid: bool = False,
) -> ProducerSessionSimulation:
    """Return a finished run. ``refusals``: the leader refuses some requests, and would accept copies of them later."""
    lies: list[m.Verdict] = ["unavailable", "not_leader", "out_of_order", "invalid", "forbidden"]
    misfits = 0
    simulation = ProducerSessionSimulation(seed, loss=loss, doubling=doubling, deadline=deadline, reorder=reorder)
    simulation.connect(True)
    simulation.announce(simulation.leaders[-1])
    rng = simulation.rng
    for _ in range(STEPS):
        match rng.choices(range(8), weights=[6, 10, 5, 10, 4, 1, 1, 1 if refusals else 0])[0]:
            case 0:
                if invalid and rng.random() < 0.1:
                    misfits -= 1
                    simulation.offer(misfits)
                else:
                    simulation.offer()
            case 1:
                simulation.pass_request()
            case 2:
                simulation.commit()
            case 3:
                simulation.pass_reply()
            case 4:
                simulation.pass_time(rng.choice([0.001, 0.02, 0.2]))
            case 5:
                if rng.random() < 0.3:
                    simulation.change_leader()
                else:
                    simulation.announce(rng.choice(simulation.leaders))  # often a stale one
            case 6:
                simulation.connect(rng.random() < 0.7)
            case 7:
                simulation.leaders[-1].refuse_next.append(rng.choice(lies))
    simulation.leaders[-1].refuse_next.clear()
    simulation.settle()
    return simulation


def check(simulation: ProducerSessionSimulation) -> None:
    log = simulation.ledger.log
    assert sorted(set(log)) == log, "stored twice or out of order"
    assert set(simulation.outcomes) == set(simulation.offered_at), "a batch without an outcome"
    for batch, outcome in simulation.outcomes.items():
        if outcome is Outcome.COMMITTED:
            assert batch in log, f"{batch} is committed and not stored"
        if outcome in (Outcome.FAILED, Outcome.INVALID):
            assert batch not in log, f"{batch} is not stored, it was said"
        assert simulation.resolved_at[batch] <= simulation.offered_at[batch] + simulation.deadline + 0.2
    assert simulation.most_in_flight <= WINDOW


chances = st.sampled_from([0.0, 0.05, 0.3])


@given(seed=st.integers(0, 2**32), loss=chances, doubling=chances, reorder=st.booleans())
def test_without_a_deadline_every_batch_is_stored_once_in_order(seed, loss, doubling, reorder):
    simulation = run(seed, loss=loss, doubling=doubling, reorder=reorder, deadline=1000.0, refusals=False)

    check(simulation)
    assert set(simulation.outcomes.values()) <= {Outcome.COMMITTED}
    assert list(simulation.offered_at) == simulation.ledger.log
    assert simulation.session.epoch_bumps == 0


@given(seed=st.integers(0, 2**32), loss=chances, doubling=chances, reorder=st.booleans(), refusals=st.booleans())
def test_with_short_deadlines_every_outcome_is_true_and_in_time(seed, loss, doubling, reorder, refusals):
    simulation = run(seed, loss=loss, doubling=doubling, reorder=reorder, deadline=0.6, refusals=refusals)

    check(simulation)


@given(seed=st.integers(0, 2**32), loss=chances, doubling=chances, reorder=st.booleans())
def test_invalid_batches_fail_alone(seed, loss, doubling, reorder):
    simulation = run(seed, loss=loss, doubling=doubling, reorder=reorder, deadline=1000.0, refusals=False, invalid=True)

    check(simulation)
    assert all((batch < 0) is (what is Outcome.INVALID) for batch, what in simulation.outcomes.items())
    assert [batch for batch in simulation.offered_at if batch > 0] == simulation.ledger.log


@pytest.mark.parametrize("seed", range(5))
def test_batches_are_committed_again_after_all_in_flight_have_expired(seed):
    simulation = ProducerSessionSimulation(seed, loss=0.0, doubling=0.0, deadline=0.6, reorder=False)
    simulation.connect(True)
    simulation.announce(simulation.leaders[-1])
    for _ in range(20):
        simulation.offer()
    for _ in range(simulation.rng.randrange(30)):
        simulation.pass_request()
        simulation.commit()
        simulation.pass_reply()
    simulation.pass_time(5.0)
    assert simulation.session.unresolved_batches == 0

    first = simulation.next_batch
    for _ in range(5):
        simulation.offer()
    simulation.deadline = 1000.0
    simulation.settle(0.5)

    check(simulation)
    assert [Outcome.COMMITTED] * 5 == [simulation.outcomes[batch] for batch in range(first, first + 5)]
