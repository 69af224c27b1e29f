"""Pages that are made once, when a form or a link asks for them: records, dead letters, events, and actions. Pure.

The page of an action is its form, then what would change with a button to confirm it, then what was done.
"""

from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import urlencode

from headgate.model.text import Encoding, as_bytes
from headgate.model.time_text import iso_time
from headgate.views.cluster import EventList, LedgerEvent
from web.api import documents
from web.api.query import Query
from web.page.markup import Column, Html, element, link, part, size, table
from web.page.shell import Page


def action_page(
    name: str, summary: str, fields: Mapping[str, Any], given: Mapping[str, str], found: documents.ActionDocument | str
) -> Page:
    """Return the page. ``found`` is text: why there is nothing to confirm; empty, if not all fields are given yet."""
    text, button = found or "The next page says what would change.", "Show"
    if isinstance(found, documents.ActionDocument):
        text, button = ("This would change:", f"Confirm: {name}") if found.dry_run else ("Done. This has changed:", "")
    of = found.of if isinstance(found, documents.ActionDocument) else given.get("of")
    form = element(
        "form",
        *(
            element("label", f"{each} ", form_field(each, kind, given.get(each), is_fixed=button != "Show"))
            for each, kind in fields.items()
        ),
        element("input", type="hidden", name="of", value=of) if of else None,
        element("button", button) if button else None,
        method="get" if isinstance(found, str) else "post",
        action=f"/actions/{name}",
    )
    changes = () if isinstance(found, str) else (element("li", each) for each in found.changes)
    return Page(
        title=f"Action {name}",
        as_of_ms=0,
        crumbs=((f"action {name}", ("actions", name)),),
        parts={
            "action": part(
                "action",
                element("p", summary),
                form,
                element("p", text, role="alert" if text == found else None),
                element("ul", changes),
            )
        },
        live=False,
        status=400 if text == found else 200,
    )


def form_field(name: str, kind: Any, value: object, *, is_fixed: bool = False) -> Html:
    """Return what a user fills in, or chooses from."""
    choices: tuple[str, ...] = ("false", "true") if kind is bool else ()
    if isinstance(kind, tuple):
        value, choices = value or kind[-1], get_args(kind[0])
    if not choices or is_fixed:
        return element("input", name=name, value=value, readonly=is_fixed)
    return element("select", *(element("option", each, selected=each == value) for each in choices), name=name)


EVENTS: tuple[Column[LedgerEvent], ...] = (
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
        parts={"events": part("events", table("The newest events first", EVENTS, found.events), end)},
        live=False,
    )


COLUMNS: tuple[Column[documents.RecordDocument], ...] = (
    Column("segment · offset", lambda each: f"{each.segment} · {each.offset}"),
    Column("time of its producer", lambda each: iso_time(each.timestamp_ms)),
    Column("key", lambda each: _data(each.key)),
    Column("value", lambda each: _data(each.value)),
    Column("headers", lambda each: [element("div", name, " = ", _data(value)) for name, value in each.headers]),
)

LETTERS: tuple[Column[documents.DeadLetter], ...] = (
    Column("key", lambda each: _data(each.key)),
    Column("segment · offset", lambda each: f"{each.origin.segment} · {each.origin.offset}"),
    Column("deliveries", lambda each: each.origin.deliveries, number=True),
    Column("died", lambda each: iso_time(each.origin.died_at_ms)),
    Column("reason", lambda each: _visible(each.origin.reason)),
)


def letters_page(document: documents.DeadLettersDocument) -> Page:
    """Return the page of dead letters, with the actions on those that it shows and older ones."""
    topic, name = document.topic, document.subscription
    path = ("topics", topic, "subscriptions", name)
    rows = table("The newest dead letters first", LETTERS, document.letters)
    where = link(f"topic {document.dead_letter_topic}", "topics", document.dead_letter_topic)
    number = element("p", f"{len(document.letters)} of {document.total}, stored in ", where, ".")
    newer = f"Newer ones were not read; headgate subscription dead-letters {topic} {name} lists all."
    return Page(
        title=f"Dead letters of {name}",
        as_of_ms=0,
        crumbs=((topic, path[:2]), (name, path), ("dead letters", (*path, "dead-letters"))),
        actions=("replay-dead-letters", "drop-dead-letters") if document.letters else (),
        acts_on={"topic": topic, "subscription": name, "through": document.through},
        parts={"letters": part("letters", number, rows, None if document.complete else element("p", newer))},
        live=False,
    )


def records_page(document: documents.RecordsDocument, query: Query) -> Page:
    topic = document.topic
    kinds = {"segment": int, "key": str, "key_encoding": (Encoding,), "last": int}
    form = element(
        "form",
        *(element("label", f"{name} ", form_field(name, kind, getattr(query, name))) for name, kind in kinds.items()),
        element("button", "Show"),
        action=f"/topics/{topic}/records",
    )
    limit = "Older objects were not read, because that would take too long; headgate read prints all records."
    content = (
        table("The newest records first", COLUMNS, document.records)
        if document.records
        else element("p", "No such record."),
        None if document.complete else element("p", limit),
    )
    return Page(
        title=f"Records of {topic}",
        as_of_ms=document.as_of_ms,
        crumbs=((topic, ("topics", topic)), ("records", ("topics", topic, "records"))),
        parts={"wanted": part("wanted", form), "records": part("records", *content)},
        live=False,
    )


def _data(data: documents.RecordData) -> Html:
    """Return text or base64."""
    rest = f" … of {size(data.size_bytes)}" if len(as_bytes(data.text, data.encoding)) < data.size_bytes else None
    kind = "base64 " if data.encoding == "base64" else None
    return element("span", kind, element("code", _visible(data.text)), rest, class_="data")


def _visible(text: str) -> str:
    """Escape characters that are not visible, or change the order."""
    return "".join(each if each.isprintable() or each in "\n\t" else f"\\u{ord(each):04x}" for each in text)
