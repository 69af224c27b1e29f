"""The page of the newest events. Pure."""

from urllib.parse import urlencode

from headgate.model.time_text import iso_time
from headgate.views.events import EventList, LedgerEvent
from web.api.query import Query
from web.page.markup import element
from web.page.shell import Page
from web.page.tables import Column, part, table

COLUMNS: tuple[Column[LedgerEvent], ...] = (
    Column("time", lambda each: iso_time(each.at_ms)),
    Column("topic", lambda each: each.topic or "-"),
    Column("subscription", lambda each: each.subscription or "-"),
    Column("what happened", lambda each: each.text),
    Column("shard", lambda each: each.shard, number=True),
    Column("term", lambda each: each.leader_epoch, number=True, minor=True),
)


def events_page(found: EventList, query: Query) -> Page:
    end = element("p", "The ledger has no older ones.")
    if found.next is not None:
        given = {"topic": query.topic or "", "limit": query.limit, "before_ms": found.next}
        end = element("p", element("a", "Older events", href=f"/events?{urlencode(given)}", rel="next"))
    return Page(
        title=f"Events of {query.topic}" if query.topic else "Events",
        as_of_ms=0,
        crumbs=(("events", ("events",)),),
        parts={"events": part("events", table("The newest events first", COLUMNS, found.events), end)},
        live=False,
    )
