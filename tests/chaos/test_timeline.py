"""Rates, latencies and outages of a run."""

from __future__ import annotations

from chaos.timeline import SECOND_NS, FaultWindow, Operation, Timeline, count_between, longest_gap_seconds

BEGAN = 5 * SECOND_NS


def at(seconds: float) -> int:
    return BEGAN + round(seconds * SECOND_NS)


def timeline() -> Timeline:
    return Timeline(
        began_ns=BEGAN,
        ended_ns=at(6),
        acknowledged={
            "orders": [(at(0.5), at(0.6)), (at(1.0), at(4.0)), (at(3.9), at(4.1)), (at(5.5), at(5.6))],
            "payments": [(at(n / 2), at(n / 2 + 0.1)) for n in range(11)],
        },
        delivered=[at(0.7), at(4.2), at(4.3)],
        operations=[Operation("split", at(1), at(3)), Operation("merge", at(2), at(3.5), "no leader")],
        children=[(at(0.5), at(5.9)), (at(1.05), at(3)), (at(3.8), at(7)), (at(5.1), at(9))],
    )


def test_rates_and_latencies_are_per_second_of_the_run() -> None:
    made = timeline()

    assert 6 == made.seconds
    assert [3, 2, 2, 2, 4, 2] == made.acknowledged_rates()
    assert [1, 0, 0, 0, 2, 0] == made.delivered_rates()
    assert [100, 100, 100, 100, 3000, 100] == [round(value) for value in made.longest_latencies_ms()]


def test_operations_outside_the_run_are_not_counted() -> None:
    made = Timeline(BEGAN, at(1), {"orders": [(at(-2), at(-1)), (at(1.5), at(2.5))]}, [at(-1), at(3)])

    assert ([0], [0], [0.0]) == (made.acknowledged_rates(), made.delivered_rates(), made.longest_latencies_ms())


def test_the_effect_of_a_fault_is_what_happened_until_the_next_one() -> None:
    effect = timeline().effect(FaultWindow("a", "", at(1.05), at(3.7)), until_ns=at(5))

    assert 6 == effect.acknowledged
    assert (0, 1, 1) == (effect.delivered, effect.commands, effect.failed_commands)
    assert {"orders": 2.95, "payments": 0.5} == {name: round(s, 2) for name, s in effect.outage_seconds.items()}
    assert 3000 == round(effect.longest_latency_ms)
    assert round(effect.children_wait_seconds, 3) == 3.2


def test_a_child_whose_record_arrives_before_its_producer_knows_it_is_stored_has_not_waited() -> None:
    made = Timeline(BEGAN, at(6), {}, [], children=[(at(2), at(1.9))])

    assert 0 == made.effect(FaultWindow("a", "", at(1), at(3)), until_ns=at(5)).children_wait_seconds


def test_a_topic_that_never_answers_again_is_out_until_the_end() -> None:
    assert 3.0 == longest_gap_seconds([at(1)], at(0.5), at(4))
    assert 4.0 == longest_gap_seconds([], at(0), at(4))


def test_the_edges_of_a_window_belong_to_it() -> None:
    assert 2 == count_between([1, 2, 3, 4], 2, 3)
    assert 0 == count_between([], 2, 3)
