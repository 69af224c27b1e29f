"""The pages of the newest records of a topic, and of the dead letters of a subscription. Pure."""

from headgate.model.text import Encoding, as_bytes
from headgate.model.time_text import iso_time
from web.api.documents import DeadLetter, DeadLettersDocument, RecordData, RecordDocument, RecordsDocument
from web.api.query import Query
from web.page.actions import form_field
from web.page.markup import Html, element
from web.page.shell import Page
from web.page.tables import Column, link, part, table
from web.page.units import size

COLUMNS: tuple[Column[RecordDocument], ...] = (
    Column("segment · offset", lambda each: f"{each.segment} · {each.offset}"),
    Column("time of its producer", lambda each: iso_time(each.timestamp_ms)),
    Column("key", lambda each: _data(each.key)),
    Column("value", lambda each: _data(each.value)),
    Column("headers", lambda each: [element("div", name, " = ", _data(value)) for name, value in each.headers]),
)

LETTERS: tuple[Column[DeadLetter], ...] = (
    Column("key", lambda each: _data(each.key)),
    Column("segment · offset", lambda each: f"{each.origin.segment} · {each.origin.offset}"),
    Column("deliveries", lambda each: each.origin.deliveries, number=True),
    Column("died", lambda each: iso_time(each.origin.died_at_ms)),
    Column("reason", lambda each: _visible(each.origin.reason)),
)


def letters_page(document: DeadLettersDocument) -> Page:
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


def records_page(document: RecordsDocument, query: Query) -> Page:
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


def _data(data: RecordData) -> Html:
    """Return text or base64."""
    rest = f" … of {size(data.size_bytes)}" if len(as_bytes(data.text, data.encoding)) < data.size_bytes else None
    kind = "base64 " if data.encoding == "base64" else None
    return element("span", kind, element("code", _visible(data.text)), rest, class_="data")


def _visible(text: str) -> str:
    """Escape characters that are not visible, or change the order."""
    return "".join(each if each.isprintable() or each in "\n\t" else f"\\u{ord(each):04x}" for each in text)
