"""Loads of shards: measured, smoothed, reported rarely, and the same for every daemon that reads the reports."""

import pytest

from controller.leadership.policy.shard_load import Arrivals, ShardLoads, shard_loads

MIB = 1 << 20
SMOOTHING_SECONDS = 300.0
FIRST_SECONDS = 30.0
REPORT_INTERVAL_SECONDS = 60.0
LOOK_SECONDS = 2.0


class OneDaemon:
    """A daemon that leads shards at given rates, and looks at them every two seconds."""

    def __init__(self) -> None:
        self.loads = ShardLoads()
        self.now = 1000.0
        self.others: dict[str, dict[int, int]] = {}
        self.holders: dict[int, str | None] = {}
        self.epoch = 1
        self.reports: list[dict[int, int]] = []
        self.costs: dict[int, float] = {}

    def run(self, seconds: float, rates: dict[int, float]) -> None:
        """Lead the shards of ``rates``, in bytes per second, for some seconds."""
        end = self.now + seconds
        while True:
            led = {shard: Arrivals(self.epoch, round(self.costs.get(shard, 0))) for shard in rates}
            self.loads.measure(self.now, led)
            if self.loads.report(self.now, self.holders, self.others):
                self.reports.append(dict(self.loads.reported))
            if self.now >= end:
                return
            self.now += LOOK_SECONDS
            for shard, rate in rates.items():
                self.costs[shard] = self.costs.get(shard, 0) + rate * LOOK_SECONDS


def test_the_first_load_is_the_mean_of_some_time() -> None:
    daemon = OneDaemon()

    daemon.run(FIRST_SECONDS - LOOK_SECONDS, {0: 8 * MIB})
    assert not daemon.reports
    daemon.run(LOOK_SECONDS, {0: 8 * MIB})

    assert daemon.reports == [{0: 8 * MIB}]


def test_a_burst_changes_no_report_and_a_lasting_change_does() -> None:
    daemon = OneDaemon()
    daemon.run(600, {0: 10 * MIB, 1: 10 * MIB})
    daemon.run(30, {0: 25 * MIB, 1: 10 * MIB})
    daemon.run(600, {0: 10 * MIB, 1: 10 * MIB})
    assert daemon.reports == [{0: 10 * MIB, 1: 10 * MIB}]

    daemon.run(2 * SMOOTHING_SECONDS, {0: 25 * MIB, 1: 10 * MIB})

    assert daemon.reports[-1][0] > 20 * MIB
    assert daemon.reports[-1][1] == 10 * MIB
    assert len(daemon.reports) <= 7, "one for each fifth"


def test_changes_are_reported_together_and_not_again_within_the_interval() -> None:
    daemon = OneDaemon()
    daemon.run(FIRST_SECONDS, {0: 10 * MIB, 1: 10 * MIB})
    assert len(daemon.reports) == 1

    daemon.run(REPORT_INTERVAL_SECONDS - LOOK_SECONDS, {0: 90 * MIB, 1: 90 * MIB})
    assert len(daemon.reports) == 1
    daemon.run(LOOK_SECONDS, {0: 90 * MIB, 1: 90 * MIB})

    assert len(daemon.reports) == 2
    assert min(daemon.reports[-1].values()) > 20 * MIB


@pytest.mark.parametrize(
    ("known", "load", "reported"),
    [
        (10 * MIB, 12 * MIB, 10 * MIB),
        (12 * MIB, 10 * MIB, 12 * MIB),
        (10 * MIB, 12 * MIB + 1, 12 * MIB + 1),
        (12 * MIB, 10 * MIB - 1, 10 * MIB - 1),
        (10 * MIB, 1000, MIB),
    ],
    ids=["a fifth larger", "a fifth smaller", "more", "less", "idle"],
)
def test_a_load_changes_its_report_when_it_is_more_than_a_fifth_off(known: int, load: int, reported: int) -> None:
    """Rules 3 and 4."""
    loads, cost = ShardLoads(), 10**12
    loads.measure(1000.0, {0: Arrivals(1, cost)})
    loads.measure(1030.0, {0: Arrivals(1, cost + 30 * load)})
    loads.report(1030.0, {}, {"b": {0: known}})

    assert loads.reported == {0: reported}


def test_a_new_term_continues_with_the_reported_load_and_says_so_when_it_changes() -> None:
    daemon = OneDaemon()
    daemon.holders, daemon.others = {0: "b"}, {"b": {0: 30 * MIB}}
    daemon.run(100, {})

    daemon.holders = {0: "a"}
    daemon.run(0, {0: 0})
    assert daemon.reports == [{0: 30 * MIB}], "at once, though nothing was measured"
    daemon.others = {"b": {}}
    daemon.run(20, {0: 30 * MIB})

    assert len(daemon.reports) == 1


def test_another_term_of_a_daemon_continues_and_a_shard_that_it_lost_is_reported_until_another_does() -> None:
    """Rules 2 and 6."""
    daemon = OneDaemon()
    daemon.run(100, {0: 10 * MIB})
    daemon.epoch, daemon.costs = 2, {}
    daemon.run(100, {0: 10 * MIB})
    daemon.run(100, {})
    assert daemon.reports == [{0: 10 * MIB}]

    daemon.others = {"b": {0: 10 * MIB}}
    daemon.run(0, {})
    assert daemon.reports[-1] == {}


def test_the_load_of_a_shard_whose_daemon_has_failed_is_reported_at_once() -> None:
    daemon = OneDaemon()
    daemon.holders, daemon.others = {0: "a", 1: "b"}, {"b": {1: 30 * MIB}}
    daemon.run(FIRST_SECONDS, {0: 5 * MIB})
    daemon.run(LOOK_SECONDS, {0: 5 * MIB})

    daemon.others = {}
    daemon.run(0, {0: 5 * MIB, 1: 0})

    assert daemon.reports[-1] == {0: 5 * MIB, 1: 30 * MIB}


@pytest.mark.parametrize(("holder", "load"), [("a", 3), ("c", 7), (None, 7)])
def test_the_holder_says_how_much_its_shard_costs(holder: str | None, load: int) -> None:
    """Rule 7: without its report, the largest one counts."""
    reports = {"a": {0: 3}, "b": {0: 7}, "c": {}}
    assert shard_loads({0: holder}, reports) == {0: load}
    assert shard_loads({0: holder, 9: "a"}, dict(reversed(reports.items()))) == {0: load}
