"""Queries are read strictly, and pages follow each other without gaps."""

import pytest

from headgate.views.subscriptions import SegmentAssignment
from tests.support.samples.status_documents import NOW_MS, subscription_document, subscription_summary, topic_summary
from web.api.documents import scale_of
from web.api.query import InvalidQueryError, Query, read_query, subscription_page, topic_page

ALL = ("scope", "limit", "after", "contains", "order", "topic")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"limit": "0"}, "limit is '0'; give a number from 1 to 1000"),
        ({"limit": "1001"}, "from 1 to 1000"),
        ({"limit": "٣"}, "from 1 to 1000"),
        ({"limit": "9" * 5000}, "from 1 to 1000"),
        ({"scope": "all"}, "scope is 'all'; give cluster, for all daemons, or daemon"),
        ({"order": "size"}, "order is 'size'; give name, or activity: blocked topics first"),
        ({"page": "2"}, "there is no parameter 'page' here; parameters: scope, limit"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_query_that_is_not_valid_is_named_with_the_valid_choices(values, message):
    with pytest.raises(InvalidQueryError, match=message):
        read_query(values, ALL)


TOPICS = [topic_summary(f"t{n}") for n in range(7)]
SUBSCRIPTIONS = [subscription_summary(*each) for each in [("a", "s"), ("a", "t"), ("a.b", "s"), ("b", "s")]]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize(
    ("page_of", "rows", "field"), [(topic_page, TOPICS, "topics"), (subscription_page, SUBSCRIPTIONS, "subscriptions")]
)
def test_pages_contain_each_row_once_also_where_one_name_begins_with_another(page_of, rows, field, limit):
    found, after = [], ""
    while after is not None:
        page = page_of(rows, Query(limit=limit, after=after), NOW_MS)
        assert len(getattr(page, field)) <= limit
        found += getattr(page, field)
        after = page.next

    assert found == rows


def test_topics_are_searched_and_ordered():
    topics = [topic_summary("ab", stored_per_second=1.0), topic_summary("b", stored_per_second=2.0), topic_summary("c")]

    assert [each.topic for each in topic_page(topics, Query(contains="b"), NOW_MS).topics] == ["ab", "b"]
    busiest = topic_page(topics, Query(order="activity", limit=2), NOW_MS)
    assert ([each.topic for each in busiest.topics], busiest.next) == (["c", "b"], None)


def test_subscriptions_are_searched_by_topic_and_name_in_any_case():
    rows = [subscription_summary(*each) for each in [("Orders", "billing"), ("clicks", "orders"), ("clicks", "x")]]

    def found(text):
        return [each.subscription for each in subscription_page(rows, Query(contains=text), NOW_MS).subscriptions]

    assert [found("orders"), found("ORDERS/b"), found("y")] == [["billing", "orders"], ["billing"], []]
    assert len(topic_page([topic_summary("Orders")], Query(contains="ord"), NOW_MS).topics) == 1


def test_open_segments_count_and_those_without_a_backlog_are_not_busy() -> None:
    rows = [("granted", 3), ("waiting", 0), ("shared", 1), ("revoking", None), ("blocked", 9), ("drained", 0)]
    segments = tuple(
        SegmentAssignment(segment=n, status=status, acknowledged_offset=0, next_offset=9, unacknowledged=left)
        for n, (status, left) in enumerate(rows)
    )
    document = subscription_document(segments)
    scale = scale_of(document)

    assert (4, 3) == (scale.usable_consumers, scale.busy_consumers)
    summary = document.summary
    assert (summary.connected_consumers, summary.backlog_records) == (scale.connected_consumers, scale.backlog_records)
