"""What the pages show, as text of their HTML."""

import xml.etree.ElementTree as ET
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from headgate.model.entries import DeliveryPolicy
from headgate.views.cluster import ComponentInfo
from metrics.health import HealthFacts, judge_health
from tests.support.samples.status_documents import (
    EXTERNAL,
    HOSTILE,
    NOW_MS,
    SEGMENTS,
    assignment,
    part,
    subscription_document,
    subscription_summary,
    topic_document,
    topic_summary,
)
from web.api.overview import merged
from web.api.query import Query
from web.page import markup as units
from web.page.markup import element, markup
from web.page.overview import ALERTS, listing_page, overview_page
from web.page.shell import Surroundings, whole_page
from web.page.topics import subscription_page, topic_page

AROUND = Surroundings(
    daemon="one",
    cluster="test",
    version="1.0",
    assets={name: f"/static/{name}?v=1" for name in ("favicon.svg", "page.css", "page.js", "idiomorph.min.js")},
)


def text_of(html):
    """Return the text of one part; raises unless it is well-formed."""
    return " ".join(" ".join(ET.fromstring(html).itertext()).split())


def overview(*parts, runbook_url=None):
    found = parts or (part(topics=[topic_summary()], subscriptions=[subscription_summary()]),)
    return overview_page(merged("test", "one", NOW_MS, 1, list(found)), runbook_url)


def test_each_part_has_its_id_and_is_well_formed():
    for page in (overview(), topic_page(topic_document()), subscription_page(subscription_document())):
        assert {name: ET.fromstring(part).get("id") for name, part in page.parts.items()} == {
            name: name for name in page.parts
        }


def test_the_overview_lists_what_is_degraded_with_the_entry_of_the_runbook():
    broken = ComponentInfo(component="drain", state="degraded", reason="Spark is down")
    problems = overview(part(components=(broken,)), runbook_url="https://wiki/runbook").parts["problems"]

    assert "degraded drain of one : Spark is down" in text_of(problems)
    assert 'href="https://wiki/runbook#headgatedraindegraded"' in problems
    assert "runbook: HeadgateDrainDegraded" in text_of(overview(part(components=(broken,))).parts["problems"])
    assert text_of(overview().parts["problems"]) == "Health ok All parts of 1 daemon work."


def test_each_component_has_an_entry_in_the_runbook():
    names = [each.name for each in fields(HealthFacts)]
    facts = dict.fromkeys(names, 0) | {
        "zookeeper": "x",
        "drain": "x",
        "drain_reason": "",
        "unreadable": {},
        "without_leader": {},
        "store_problems": {},
        "descriptors": (0, 0),
    }
    components = {
        each.component for each in judge_health(HealthFacts(**facts | {"zookeeper_problem": None})).components
    }
    runbook = (Path(__file__).parents[3] / "deploy" / "prometheus" / "RUNBOOK.md").read_text()
    headings = {line[3:].strip() for line in runbook.splitlines() if line.startswith("## ")}

    assert ALERTS.keys() == components | {"daemon"}
    assert set(ALERTS.values()) <= headings


def test_a_topic_shows_its_segments_and_links_its_subscriptions():
    page = topic_page(topic_document())

    assert 'href="/topics/orders/subscriptions/billing"' in page.parts["subscriptions"]
    assert "2 · 400 records" in page.parts["layout"]
    assert "Stored 20/s" in text_of(page.parts["totals"])


def test_the_overview_says_which_shards_have_no_leader():
    page = overview_page(merged("test", "one", NOW_MS, 3, [part()]), None)
    assert "no known leader of shards 1, 2: their topics are missing on this page" in text_of(page.parts["problems"])


def test_every_text_is_escaped():
    values = {"subscription": HOSTILE, "unknown_reason": HOSTILE}
    hostile = merged("test", "one", NOW_MS, 1, [part("one", [topic_summary(HOSTILE)], [subscription_summary(HOSTILE)])])
    pages = [
        overview(part(HOSTILE, [topic_summary(HOSTILE)], [subscription_summary(HOSTILE)], problem=HOSTILE)),
        topic_page(topic_document(subscriptions=(subscription_summary(**values),), external=EXTERNAL)),
        subscription_page(
            subscription_document(
                (
                    assignment(0, "granted", consumer=HOSTILE, label=HOSTILE),
                    *(assignment(n, "waiting") for n in (1, 2, 3)),
                ),
                layout=(msgspec.structs.replace(SEGMENTS[0], label=HOSTILE), *SEGMENTS[1:]),
                explanation=msgspec.structs.replace(subscription_document().explanation, summary=("", HOSTILE)),
                summary=subscription_summary(**values),
            )
        ),
        listing_page("topics", hostile, Query(contains=HOSTILE, after=HOSTILE)),
        listing_page("subscriptions", hostile, Query(contains=HOSTILE)),
    ]
    for page in pages:
        whole = str(whole_page(page, f"/{HOSTILE}", AROUND))
        assert "<script>" not in whole
        assert "alert(1)" in whole
        for each in page.parts.values():
            assert list(ET.fromstring(each).iter("script")) == []


def test_nothing_inline_and_nothing_from_elsewhere():
    whole = str(whole_page(overview(), "/", AROUND))

    assert " style=" not in whole
    assert "<style" not in whole
    assert " onclick" not in whole
    assert {word.split('"')[1] for word in whole.split("src=")[1:]} == {
        "/static/page.js?v=1",
        "/static/idiomorph.min.js?v=1",
    }


def test_markup_takes_html_as_it_is_and_escapes_the_rest():
    assert markup("<", element("b", "&"), None, ["x", 1]) == "&lt;<b>&amp;</b>x1"
    assert (
        element("a", class_="x y", hidden=True, title=None, data_x='"') == '<a class="x y" hidden data-x="&quot;"></a>'
    )


def test_what_waits_is_said_in_the_words_of_explain():
    text = text_of(subscription_page(subscription_document()).parts["waiting"])

    assert "segments 2, 3 wait for segment 0. Segment 0 has 100 unacknowledged records." in text


@pytest.mark.parametrize(("dead_letter_topic", "links"), [("", 0), ("dead", 1)])
def test_a_subscription_with_a_dead_letter_topic_links_its_dead_letters(dead_letter_topic, links):
    policy, document = DeliveryPolicy(dead_letter_topic=dead_letter_topic), subscription_document()
    described = msgspec.structs.replace(document.subscription, policy=policy)
    html = subscription_page(msgspec.structs.replace(document, subscription=described)).parts["totals"]
    assert html.count('href="/topics/orders/subscriptions/billing/dead-letters"') == links


def test_a_consumer_is_shown_with_each_range_that_it_reads():
    assert "0, 1[8-11], 1[12-15]" in text_of(subscription_page(subscription_document()).parts["consumers"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (950, "950"),
        (9_999, "9 999"),
        (10_000, "10 k"),
        (12_345, "12.3 k"),
        (123_456, "123 k"),
        (999_600, "1 M"),
        (4_560_000, "4.56 M"),
        (10**17, "100 P"),
        (10**20, "100 000 P"),
    ],
)
def test_counts_have_three_digits_above_ten_thousand(value, text):
    assert units.count(value) == text
