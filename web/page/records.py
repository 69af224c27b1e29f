"""The page of the newest records of a topic. Pure."""

from headgate.model.time_text import iso_time
from web.api.documents import RecordData, RecordDocument, RecordsDocument
from web.api.query import Query
from web.page.markup import Html, element
from web.page.shell import Page
from web.page.tables import Column, part, table
from web.page.units import size

COLUMNS: tuple[Column[RecordDocument], ...] = (
    Column("segment · offset", lambda each: f"{each.segment} · {each.offset}"),
    Column("time of its producer", lambda each: iso_time(each.timestamp_ms)),
    Column("key", lambda each: _data(each.key)),
    Column("value", lambda each: _data(each.value)),
    Column("headers", lambda each: [element("div", name, " = ", _data(value)) for name, value in each.headers]),
)


def records_page(document: RecordsDocument, query: Query) -> Page:
    topic = document.topic
    fields = {"segment": query.segment, "key": query.key, "last": query.last}
    form = element(
        "form",
        *(element("label", f"{name} ", element("input", name=name, value=each)) for name, each in fields.items()),
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
    """Return text or digits. Characters that are not visible, or change the order, are escaped."""
    visible = "".join(each if each.isprintable() or each in "\n\t" else f"\\u{ord(each):04x}" for each in data.text)
    hexadecimal = data.encoding == "hex"
    beginning = len(data.text.encode()) // (2 if hexadecimal else 1) < data.size_bytes
    rest = f" … of {size(data.size_bytes)}" if beginning else None
    return element("span", "hex " if hexadecimal else None, element("code", visible), rest, class_="data")
