"""Reads the query of a request to the HTTP API, and cuts pages. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from headgate.errors import HeadgateError
from headgate.views.cluster import SubscriptionSummary
from web.api.documents import SubscriptionPage, TopicPage, TopicSummary
from web.api.openapi import DEFAULT_LIMIT, MAX_LIMIT
from web.api.overview import TopicOrder, ordered_topics

Scope = Literal["cluster", "daemon"]
RowT = TypeVar("RowT", TopicSummary, SubscriptionSummary)


class InvalidQueryError(HeadgateError):
    """A parameter is unknown, or its value is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a request asked for; see `web.api.openapi.PARAMETERS`."""

    scope: Scope = "cluster"
    limit: int = DEFAULT_LIMIT
    after: str = ""
    contains: str = ""
    order: TopicOrder = "name"
    topic: str | None = None

    @property
    def own(self) -> bool:
        return self.scope == "daemon"


def read_query(values: Mapping[str, str], allowed: Sequence[str]) -> Query:
    for name in values:
        if name not in allowed:
            raise InvalidQueryError(f"there is no parameter {name!r} here; parameters: {', '.join(allowed) or 'none'}")
    limit = values.get("limit", str(DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_LIMIT):
        raise InvalidQueryError(f"limit is {limit!r}; give a number from 1 to {MAX_LIMIT}")
    scope, order = values.get("scope", "cluster"), values.get("order", "name")
    if scope not in get_args(Scope):
        raise InvalidQueryError(f"scope is {scope!r}; give one of: {', '.join(get_args(Scope))}")
    if order not in get_args(TopicOrder):
        raise InvalidQueryError(f"order is {order!r}; give one of: {', '.join(get_args(TopicOrder))}")
    return Query(
        scope="daemon" if scope == "daemon" else "cluster",
        limit=int(limit),
        after=values.get("after", ""),
        contains=values.get("contains", ""),
        order="activity" if order == "activity" else "name",
        topic=values.get("topic"),
    )


def topic_page(topics: Iterable[TopicSummary], query: Query, as_of_ms: int) -> TopicPage:
    """Return one page of ``topics``. In the order of activity there is only one, of the first ones."""
    wanted = [each for each in ordered_topics(topics, query.order) if query.contains in each.topic]
    if query.order == "activity":
        return TopicPage(as_of_ms=as_of_ms, topics=tuple(wanted[: query.limit]), next=None)
    rest = [each for each in wanted if each.topic > query.after]
    page = rest[: query.limit]
    return TopicPage(as_of_ms=as_of_ms, topics=tuple(page), next=page[-1].topic if len(rest) > len(page) else None)


def subscription_page(subscriptions: Iterable[SubscriptionSummary], query: Query, as_of_ms: int) -> SubscriptionPage:
    """Return one page of ``subscriptions``, by topic and name; the cursor is ``topic/subscription``."""
    topic, _, name = query.after.partition("/")
    rest = [
        each
        for each in subscriptions
        if query.topic in (None, each.topic) and (each.topic, each.subscription) > (topic, name)
    ]
    page = rest[: query.limit]
    following = f"{page[-1].topic}/{page[-1].subscription}" if len(rest) > len(page) else None
    return SubscriptionPage(as_of_ms=as_of_ms, subscriptions=tuple(page), next=following)
