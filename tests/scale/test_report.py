"""The report of a trial, and what is read from pages and logs."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from metrics import events
from metrics.instruments import Instruments
from scale.asking_stages import lag_seconds
from scale.cluster import Usage, read_srvr
from scale.report import Measured, Report, metric_lines, percentile, shown
from scale.sizes import Sizes
from scale.trial import spent


def test_the_document_groups_values_by_stage_and_names_their_units() -> None:
    report = Report(Sizes(shards=2), "2 processors", "python -m scale")
    report.measured += [
        Measured("start", "all shards led", 1.5, "s"),
        Measured("start", "ZooKeeper nodes", 9, ""),
        Measured("producers", "openings", 2000, "1/s"),
        Measured("topics", "creating a topic, p99", 3, "ms"),
    ]
    document = report.document()
    assert {
        "start": {"all_shards_led_s": 1.5, "ZooKeeper_nodes": 9},
        "producers": {"openings_1_per_s": 2000},
        "topics": {"creating_a_topic_p99_ms": 3},
    } == document["stages"]
    assert 2 == document["sizes"]["shards"]
    assert "" == document["unfinished"]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12, "12"), (1234.5, "1,234"), (0.01234, "0.0123"), (99.96, "100")]
)
def test_values_are_shown_with_three_digits_or_more(value: float, text: str) -> None:
    assert text == shown(value)


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(each) for each in range(100, 0, -1)]
    assert (51, 100, 100) == (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0))
    assert 7 == percentile([7.0], 0.5)
    assert 0 == percentile([], 0.5)


def test_a_page_of_metrics_is_counted() -> None:
    registry = CollectorRegistry()
    waiting = Gauge("waiting", "Waiting requests.", ["kind"], registry=registry)
    waiting.labels("a").set(1)
    waiting.labels("b").set(2)
    Gauge("retries", "Retries.", registry=registry)
    assert (2, 3) == metric_lines(generate_latest(registry).decode())


def test_the_longest_delay_of_a_loop_is_the_bound_of_the_highest_bucket_with_a_value() -> None:
    registry = CollectorRegistry()
    instruments = Instruments(registry)
    assert [] == list(lag_seconds(generate_latest(registry).decode()))
    instruments.observe(events.LoopLagMeasured(seconds=0.3))
    instruments.observe(events.LoopLagMeasured(seconds=0.04))
    assert [0.5] == list(lag_seconds(generate_latest(registry).decode()))


def test_the_writes_of_zookeeper_do_not_count_elections() -> None:
    answer = "Zookeeper version: 3.9\nLatency min/avg/max: 0/0.4/21\nZxid: 0x2000000ff\nMode: leader\nNode count: 94\n"
    assert {"nodes": 94, "writes": 255} == read_srvr(answer)


def test_processor_time_counts_only_while_the_processes_stay_the_same() -> None:
    before = {
        "daemon": [Usage(1, 9, 1.0), Usage(2, 9, 2.0)],
        "clients": [Usage(3, 9, 7.0)],
        "broker": [Usage(4, 9, 4.0)],
    }
    after = {
        "daemon": [Usage(1, 9, 2.0), Usage(2, 9, 2.5)],
        "clients": [Usage(5, 9, 3.0)],
        "broker": [Usage(4, 9, 4.25)],
    }
    assert {"daemon": 1.5, "broker": 0.25} == spent(before, after)
