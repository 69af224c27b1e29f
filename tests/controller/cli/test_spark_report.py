"""Which changes of Spark's state `headgate up` prints."""

from __future__ import annotations

from controller.cli.spark_report import SparkReport


def test_the_first_readiness_is_printed_once_with_the_time_it_took():
    report = SparkReport("Spark", 100.0)

    assert report.line("off", "no reply yet", 100.0) is None
    assert report.line("starting", "the Spark process is starting", 101.0) is None
    assert report.line("ready", "/s answers", 112.0) == "Spark: ready after 12 s"
    assert report.line("ready", "/s answers", 113.0) is None


def test_the_loss_is_printed_once_and_the_return_with_the_time_since_the_loss():
    report = SparkReport("Spark", 0.0)
    report.line("ready", "", 8.0)

    assert report.line("degraded", "it died", 1000.0) == "Spark: not ready: it died"
    assert report.line("degraded", "it died", 1001.0) is None
    assert report.line("starting", "it starts again", 1002.0) is None
    assert report.line("ready", "", 1030.0) == "Spark: ready again after 30 s"
    assert report.line("degraded", "it died", 2000.0) == "Spark: not ready: it died"


def test_a_long_start_is_mentioned_every_minute():
    report = SparkReport("Spark", 0.0)

    assert report.line("starting", "it starts", 59.0) is None
    assert report.line("starting", "it starts", 60.0) == "Spark: not ready for 60 s: it starts"
    assert report.line("starting", "it starts", 119.0) is None
    assert report.line("starting", "it starts", 121.0) == "Spark: not ready for 2 min: it starts"
