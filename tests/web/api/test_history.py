"""Rates and backlogs over time: what a sample is derived from, and how many are kept."""

import pytest
from msgspec.structs import replace

from tests.support.samples.status_documents import NOW_MS, history, subscription_summary, topic_summary
from web.api.history import History, merged_history


def recorded(*counts, seconds=10):
    """Return a history of counts (records of the topic, backlog of its subscription), one every ``seconds``."""
    found = History()
    for number, (records, backlog) in enumerate(counts):
        topic = topic_summary(records=records, backlog_records=backlog)
        found.record(NOW_MS + number * seconds * 1000, [topic], [subscription_summary(backlog_records=backlog)])
    return found


def acknowledged(samples):
    return [each.acknowledged_per_second for each in samples]


@pytest.mark.parametrize(
    ("before", "now", "rate"),
    [
        pytest.param((100, 40), (100, 40), 0.0, id="nothing moves"),
        pytest.param((100, 40), (150, 40), 5.0, id="as much as is stored"),
        pytest.param((100, 40), (150, 90), 0.0, id="nothing of what is stored"),
        pytest.param((100, 40), (100, 10), 3.0, id="the backlog shrinks"),
        pytest.param((100, 40), (100, 80), None, id="a seek went back"),
        pytest.param((100, 40), (60, 0), None, id="records were pruned"),
        pytest.param((100, None), (100, 10), None, id="the backlog was unknown"),
        pytest.param((None, 10), (None, 5), None, id="an external topic"),
    ],
)
def test_the_acknowledged_rate_is_what_was_stored_less_the_growth_of_the_backlog(before, now, rate):
    found = recorded(before, now)

    assert acknowledged(found.samples("orders", "billing")) == [None, rate]
    assert acknowledged(found.samples("orders")) == [None, rate]
    assert acknowledged(found.samples()) == [None, rate]


def test_a_topic_has_the_sum_of_its_subscriptions_and_a_daemon_that_of_its_topics():
    found = History()
    for at_ms, left in ((NOW_MS, 30), (NOW_MS + 10_000, 10)):
        topics = [
            topic_summary("a", records=50, backlog_records=2 * left, stored_per_second=4.0),
            topic_summary("b", records=9, backlog_records=3, stored_per_second=1.0),
        ]
        own = [
            subscription_summary("a", "x", backlog_records=left),
            subscription_summary("a", "y", backlog_records=left),
            subscription_summary("b", "x", backlog_records=3),
        ]
        found.record(at_ms, topics, own)

    assert found.samples("a")[-1].acknowledged_per_second == 4.0
    assert found.samples()[-1] == replace(
        found.samples("a")[-1], stored_per_second=5.0, acknowledged_per_second=4.0, backlog_records=23
    )


def test_a_subscription_that_was_created_since_the_last_sample_has_no_rate_yet():
    found = recorded((100, 40))
    late = subscription_summary(subscription="late", backlog_records=7)
    found.record(NOW_MS + 10_000, [topic_summary(records=100)], [subscription_summary(backlog_records=40), late])

    assert acknowledged(found.samples("orders", "late")) == [None]
    assert acknowledged(found.samples("orders")) == [None, 0.0]


@pytest.mark.parametrize("ids", [(2, 1), (1, 2)], ids=["the topic", "the subscription"])
def test_what_was_deleted_and_created_again_under_its_name_begins_a_new_series(ids):
    found = recorded((100, 40))
    topic, subscription = topic_summary(topic_id=ids[0], records=200), subscription_summary(subscription_id=ids[1])
    found.record(NOW_MS + 10_000, [topic], [subscription])

    assert [None] == acknowledged(found.samples("orders", "billing"))
    assert (1 if ids[0] == 2 else 2) == len(found.samples("orders"))


def test_a_topic_that_is_deleted_or_led_elsewhere_loses_its_series():
    found = recorded((100, 40))
    found.record(NOW_MS + 1, [], [])

    assert found.samples("orders") == ()
    assert len(found.samples()) == 2


def test_an_answer_that_was_recorded_already_adds_nothing_and_a_clock_that_went_back_starts_again():
    found = recorded((100, 40), (110, 40))
    found.record(NOW_MS + 10_000, [topic_summary(records=500)], [])
    assert len(found.samples()) == 2

    found.record(NOW_MS - 5000, [topic_summary(records=120, backlog_records=0)], [])
    assert [each.at_ms for each in found.samples()] == [NOW_MS - 5000]


def test_a_daemon_that_is_late_counts_with_its_last_sample_for_a_while():
    ended = history(*((1.0, 1.0, 1),) * 3)
    running = [*ended, *(replace(ended[-1], at_ms=NOW_MS + n * 15_000) for n in range(1, 6))]

    assert [each.backlog_records for each in merged_history([running, ended])] == [2, 2, 2, 2, 2, 1, 1, 1]
