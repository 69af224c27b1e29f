"""Reads the query of a request to the HTTP API, and cuts pages. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from headgate.model.text import Encoding
from headgate.views.cluster import SubscriptionSummary
from web.access import RefusedError
from web.api.documents import SubscriptionPage, TopicPage, TopicSummary
from web.api.overview import TopicOrder, ordered_topics

RowT = TypeVar("RowT", TopicSummary, SubscriptionSummary)


class InvalidQueryError(RefusedError):
    """A parameter is unknown, or its value is not valid."""

    status = 400


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asked for. The descriptions tell a user what a parameter may be."""

    scope: Annotated[
        Literal["cluster", "daemon"],
        Meta(description="cluster, for all daemons, or daemon, for only what the daemon that answers leads"),
    ] = "cluster"
    limit: Annotated[int, Meta(ge=1, le=1000, description="a number from 1 to 1000: rows of a page")] = 100
    after: Annotated[
        str, Meta(description="The `next` of the page before; topics in the order of activity have one page only.")
    ] = ""
    contains: Annotated[
        str, Meta(description="Only names that contain this text, in any case; of a subscription: topic/subscription.")
    ] = ""
    order: Annotated[TopicOrder, Meta(description="name, or activity: blocked topics first, then the highest rate")] = (
        "name"
    )
    topic: Annotated[str | None, Meta(description="Only this topic.")] = None
    since_ms: Annotated[int, Meta(ge=0, description="milliseconds since 1970: only events from then on")] = 0
    before_ms: Annotated[int | None, Meta(description="milliseconds since 1970: only earlier events")] = None
    segment: Annotated[int | None, Meta(description="a number: only records of this segment")] = None
    key: Annotated[str | None, Meta(description="Only records with this key.")] = None
    key_encoding: Annotated[Encoding, Meta(description="utf-8, or base64 for a key that is no text")] = "utf-8"
    last: Annotated[int, Meta(ge=1, le=100, description="a number from 1 to 100: how many records")] = 20
    dry_run: Annotated[bool, Meta(description="true, to change nothing and learn what would change, or false")] = False

    @property
    def own(self) -> bool:
        return self.scope == "daemon"


PARAMETERS: Final = msgspec.json.schema_components([Query])[1]["Query"]["properties"]
"""The JSON schema of each parameter."""


def read_query(values: Mapping[str, str], allowed: Sequence[str]) -> Query:
    """Return what ``values`` ask for. An empty one, as of a form's field, is none."""
    for name in values:
        if name not in allowed:
            raise InvalidQueryError(f"there is no parameter {name!r} here; parameters: {', '.join(allowed) or 'none'}")
    try:
        return msgspec.convert({name: value for name, value in values.items() if value}, Query, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        raise InvalidQueryError(f"{name} is {values[name]!r}; give {PARAMETERS[name]['description']}") from None


def topic_page(topics: Iterable[TopicSummary], query: Query, as_of_ms: int) -> TopicPage:
    """Return one page of ``topics``. In the order of activity there is only one, of the first ones."""
    wanted = [each for each in ordered_topics(topics, query.order) if query.contains.lower() in each.topic.lower()]
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
        if query.topic in (None, each.topic)
        and (each.topic, each.subscription) > (topic, name)
        and query.contains.lower() in f"{each.topic}/{each.subscription}".lower()
    ]
    page = rest[: query.limit]
    following = f"{page[-1].topic}/{page[-1].subscription}" if len(rest) > len(page) else None
    return SubscriptionPage(as_of_ms=as_of_ms, subscriptions=tuple(page), next=following)
