"""Charts of rates and backlog, and the bars of shared segments."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.support.samples.status_documents import HISTORY, HOSTILE, assignment, bucket_range, history
from web.page.buckets import MAX_BARS, bucket_bars
from web.page.charts import HEIGHT, TABLE_ROWS, WIDTH, charts


def drawn(samples):
    """Return name → (what is spoken, the path) of each chart."""
    found = ET.fromstring(charts(samples)).findall("div/div")
    return {each.find("p").text: (each.find("svg/title").text, each.find("svg/path").get("d")) for each in found}


def points(path):
    return [
        [tuple(map(float, point.removesuffix("h0").split())) for point in run.split("L")] for run in path.split("M")[1:]
    ]


def test_a_chart_begins_at_0_and_ends_at_the_newest_sample():
    (line,) = points(drawn(history((0.0, 0.0, 0), (10.0, 0.0, 0), (5.0, 0.0, 0)))["Stored"][1])

    assert [x for x, _ in line] == [1.0, WIDTH / 2, WIDTH - 1]
    assert line[0][1] > line[2][1] > line[1][1]
    assert line[2][1] == pytest.approx((line[0][1] + line[1][1]) / 2)
    assert all(0 <= y <= HEIGHT for _, y in line)


def test_the_values_are_also_a_table_the_newest_first():
    found = ET.fromstring(charts(HISTORY)).find("details")
    rows = [["".join(cell.itertext()) for cell in row] for row in found.findall(".//tbody/tr")]

    assert rows == [
        ["22:13:20 UTC", "20/s", "25/s", "100"],
        ["22:13:05 UTC", "20/s", "15/s", "125"],
        ["22:12:50 UTC", "10/s", "-", "50"],
    ]
    assert charts(history(*((1.0, 1.0, 1),) * 100)).count('scope="row"') == TABLE_ROWS


@pytest.mark.parametrize("samples", [(), HISTORY[:1]], ids=["no sample", "one sample"])
def test_too_few_samples_are_said(samples):
    assert "None is known here yet" in charts(samples)


def test_a_shared_segment_is_a_bar_of_its_key_buckets():
    shared = assignment(
        7, "shared", bucket_ranges=(bucket_range(0, 4, HOSTILE), bucket_range(4, 16, None, status="waiting"))
    )
    bars = ET.fromstring(bucket_bars([assignment(1, "granted"), shared]))

    (bar,) = bars.findall("div")
    fields = [(each.get("class"), each.find("rect")) for each in bar.findall("svg/g")]
    assert [(name, rect.get("x"), rect.get("width")) for name, rect in fields] == [
        ("active", "1", "158"),
        ("waiting", "161", "478"),
    ]
    assert [each.text for each in bar.findall("ul/li")] == [
        f"buckets 0-3: {HOSTILE}, granted, ~50 behind",
        "buckets 4-15: no consumer, waiting, ~50 behind",
    ]


def test_bars_are_limited_and_drained_segments_have_none():
    shared = [assignment(n, "shared", bucket_ranges=(bucket_range(0, 16, "ada"),)) for n in range(MAX_BARS + 3)]

    assert bucket_bars(shared).count('class="chart"') == MAX_BARS
    assert "3 more; the API lists all." in bucket_bars(shared)
    assert bucket_bars([assignment(1, "drained", bucket_ranges=(bucket_range(0, 16, "ada"),))]) is None
    assert bucket_bars([assignment(1, "granted")]) is None
