"""The harness of the benchmarks: what it measures, prints and refuses."""

import json
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import command
from bench.harness.benchmark import Benchmark, Effort, Listed, Measurement, Rounds, catalogue, run_alternating
from controller.local.supervised_process import ProcessStartError

ROOT = Path(__file__).parents[3]


def _benchmark(value: float, goal: float = 2.0, better: str = "lower", **part_goals: float) -> Benchmark:
    parts = {"rounds": 3}
    return Benchmark(
        unit="times", goal=goal, better=better, measure=lambda _: Measurement(value, parts), part_goals=part_goals
    )


def _invoke(benchmark: Benchmark, *arguments: str):
    listed = Listed("subject", "What is compared.\n\nWhy.", benchmark)
    return CliRunner().invoke(command({"made_up": lambda: listed}), arguments)


def test_every_benchmark_states_what_it_compares_and_has_a_goal() -> None:
    """Each module in a subject's package is a benchmark, and those of a subject follow each other."""
    loaded = {name: load() for name, load in catalogue().items()}

    assert {"restore", "failover", "loop_stall"} <= set(loaded)
    for name, listed in loaded.items():
        assert len(listed.doc.strip().splitlines()) > 2, f"{name}: state what is compared and why"
        assert listed.benchmark.goal > 0
        assert listed.benchmark.unit
    assert {"__init__", "__main__"} == {path.stem for path in (ROOT / "bench").glob("*.py")}, "outside of a subject"
    assert ["backlog", "cluster", "consume", "ingest", "ledger"] == [
        subject for subject, _ in groupby(listed.subject for listed in loaded.values())
    ]


def test_a_benchmark_whose_servers_cannot_start_ends_with_one_line() -> None:
    def measure(_: Effort) -> Measurement:
        raise ProcessStartError("mosquitto is not installed: install it")

    result = _invoke(replace(_benchmark(1.0), measure=measure), "made_up")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: made_up: mosquitto is not installed: install it\n"


@pytest.mark.parametrize("goals", [{"rounds": 3.0}, {"rounds": 2.0}, {"other": 3.0}], ids=["met", "missed", "missing"])
def test_a_benchmark_meets_its_goal_only_if_its_parts_do(goals: dict[str, float]) -> None:
    """The value alone would meet its goal in each case."""
    met = goals == {"rounds": 3.0}
    benchmark = _benchmark(1.0, **goals)

    result = json.loads(_invoke(benchmark, "made_up", "--json").stdout)

    assert met is result["goal_met"]
    assert goals.items() <= {name.removesuffix("_goal"): goal for name, goal in result["parts"].items()}.items()
    assert met is ("missed" not in _invoke(benchmark, "made_up").stdout)


async def test_sides_alternate_and_the_first_one_changes() -> None:
    """The warm-up round runs, and does not count."""
    order = []

    async def side(name: str) -> None:
        order.append(name)

    rounds = await run_alternating({name: partial(side, name) for name in "ab"}, 3, lambda _: None)

    assert [*"ba", *"ab", *"ba", *"ab"] == order
    assert {side: len(seconds) for side, seconds in rounds.seconds.items()} == {"a": 3, "b": 3}


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    """One disturbed round changes nothing, on either side."""
    measured = Rounds({"ours": [2.0, 90.0, 2.0, 2.2, 2.0], "theirs": [1.0, 1.0, 1.0, 1.0, 50.0]}).median_ratio(
        "ours", "theirs"
    )

    assert measured.value == 2.0
    assert measured.parts == {"ours_ms": 2000.0, "theirs_ms": 1000.0, "lowest": 0.04, "highest": 90.0, "rounds": 5}
