"""`headgate topic files`: where other programs find the records of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headgate.cli.arguments import topic_argument
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import print_table

if TYPE_CHECKING:
    from headgate.reading.topic_files import TopicFile
    from headgate.views.topics import TopicInfo


@command("headgate topic files orders", "headgate topic files orders --json > orders.json")
@topic_argument
def files(context: CommandContext, topic: str) -> None:
    """List the Parquet files that hold the records of TOPIC, each record once.

    A compacted file holds only records of one segment of TOPIC. A chunk also has other rows: select fact "record", and
    the topic id, the segments and their offsets that --json prints. If a file disappears while it is read, list again.
    In Python, `headgate.dataset` does all of this.
    """
    description, ledger_id, found, terms = context.run(_files(context, topic))
    listed = listing(description, ledger_id, found, context.client_config().ledger_url)
    for each in listed["files"]:
        # As text: many programs read a JSON number of 63 bits wrongly.
        each["term_id"] = str(terms[each["first_chunk"]]) if each["kind"] == "chunk" else None
    if context.printed_as_json(listed):
        return
    print_table(
        ("kind", "chunks", "segment", "offsets", "location"),
        [
            (
                each["kind"],
                f"{each['first_chunk']}-{each['last_chunk']}",
                "" if each["segment"] is None else str(each["segment"]),
                "" if each["segment"] is None else f"{each['first_offset']}-{each['end_offset'] - 1}",
                each["location"],
            )
            for each in listed["files"]
        ],
        numbers=("segment",),
    )


def listing(topic: TopicInfo, ledger_id: str, files: list[TopicFile], ledger_url: str) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415 - not needed to print help

    base = location(ledger_url)
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "shard": topic.shard,
        "ledger_id": ledger_id,
        "segments": [{"segment": each.segment, "end_offset": each.next_offset} for each in topic.segments],
        "files": [{"location": f"{base}/{each.path}", **msgspec.structs.asdict(each)} for each in files],
    }


def location(ledger_url: str) -> str:
    """Return what Parquet readers call the ledger: the path of a folder, or the URL of a bucket."""
    parts = urlsplit(ledger_url)
    return (unquote(parts.path) if parts.scheme == "file" else ledger_url).rstrip("/")


async def _files(context: CommandContext, topic: str) -> tuple[TopicInfo, str, list[TopicFile], dict[int, int]]:
    from headgate.reading.topic_files import terms_of, topic_files  # noqa: PLC0415 - not needed to print help

    async with context.open_topic(topic) as source:
        found = await topic_files(source.ledger, source.description)
        terms = await terms_of(source.ledger, [each.first_chunk for each in found if each.kind == "chunk"])
        return source.description, source.ledger_id, found, terms
