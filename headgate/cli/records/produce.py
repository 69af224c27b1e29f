"""`headgate produce`: write lines to a topic, newline-delimited JSON, CSV or others, one record per line.

headgate.cli.records.line_source reads, sends and resumes. The summary counts records: accepted by the producer, stored
(durable) and failed. Any failure sets exit code 1.
"""

from functools import partial
from pathlib import Path

import click

from headgate.cli.arguments import require_beside, topic_argument
from headgate.cli.context import CommandContext, command
from headgate.cli.records import ndjson as lines
from headgate.cli.records.csv_rows import RowParser
from headgate.cli.records.line_source import LineImport, LineParser, require_one_regular_file
from headgate.cli.terminal.option_types import FilePath
from headgate.model.headers import Headers, wrong_headers
from headgate.model.time_text import TIME_HELP, UNITS_PER_SECOND, TimeUnit


def _header_option(_: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> Headers:
    pairs = [text.partition("=") for text in texts]
    if missing := [name for name, separator, _ in pairs if not separator]:
        raise click.BadParameter(f"{missing[0]!r} has no value: give NAME=VALUE", param=parameter)
    headers = tuple((name, value.encode()) for name, _, value in pairs)
    if (wrong := wrong_headers(headers, reserved=False)) is not None:
        raise click.BadParameter(f"a record has {wrong}", param=parameter)
    return headers


@command(
    "headgate produce orders --key-field id events.ndjson",
    "tail -f app.log | headgate produce logs --key-field host --skip-bad-lines",
    "headgate produce orders --csv --key-field id --timestamp-field at --timestamp-unit s events.csv",
    "headgate produce orders --key-field customer.id --name import-1 events.ndjson",
    "headgate produce orders --key-field id --header content-type=application/json events.ndjson",
    "headgate read orders --format '%k\\t%v\\n' | headgate produce copies --key-separator '\\t'",
)
@topic_argument
@click.argument("files", metavar="[FILE…|-]", nargs=-1, type=FilePath(allow_dash=True))
@click.option(
    "--key-field",
    metavar="FIELD",
    help="Field that contains the key; a.b is field b inside field a. With --csv, a column: its name or number from 1.",
)
@click.option("--key", metavar="TEXT", help="Use this key for every record, instead of --key-field.")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="The key is what precedes this text in the line (\\t is a tab), the value what follows; not only JSON.",
)
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_header_option,
    help="Header of every record; can be repeated.",
)
@click.option("--raw", is_flag=True, help="With --key: lines need not be JSON.")
@click.option("--csv", "is_csv", is_flag=True, help="Rows of CSV with a header; the value is the row as a JSON object.")
@click.option("--no-header", is_flag=True, help="With --csv: the first row is a record too; the value is a JSON array.")
@click.option("--timestamp-field", metavar="FIELD", help=f"Field with the timestamp. {TIME_HELP}")
@click.option(
    "--timestamp-unit",
    type=click.Choice(list(UNITS_PER_SECOND)),
    default="ms",
    show_default=True,
    help="Unit of numbers without one in --timestamp-field. A time that is not between 1990 and 2100 is invalid.",
)
@click.option("--skip-bad-lines", is_flag=True, help="Skip invalid lines: count and report them.")
@click.option(
    "--name",
    metavar="NAME",
    help="Producer name. The next run with this name and file starts after the last stored record.",
)
def produce(
    context: CommandContext,
    *,
    topic: str,
    files: tuple[Path, ...],
    key_field: str | None,
    key: str | None,
    key_separator: str | None,
    headers: Headers,
    raw: bool,
    is_csv: bool,
    no_header: bool,
    timestamp_field: str | None,
    timestamp_unit: TimeUnit,
    skip_bad_lines: bool,
    name: str | None,
) -> None:
    """Write lines from FILEs, or standard input, to TOPIC: newline-delimited JSON, CSV, or any text.

    Each line is one record. Its value is the unchanged line without its line feed, its key is the text of one field.
    A carriage return before the line feed is part of the value. Blank lines are records with --raw, have no key with
    --key-separator, and are counted otherwise. Records with the same key stay in order. Exit code 1 if a record was
    not stored.
    """
    if sum(option is not None for option in (key_field, key, key_separator)) != 1:
        raise click.UsageError("give exactly one of --key-field FIELD, --key TEXT and --key-separator TEXT")
    if "" in (key, key_separator):
        raise click.UsageError("--key and --key-separator must not be empty")
    if is_csv and (raw or key_separator is not None):
        raise click.UsageError("--csv excludes --raw and --key-separator: a key of CSV is --key-field COLUMN")
    if no_header and not is_csv:
        raise click.UsageError("--no-header requires --csv")
    if raw and key is None:
        raise click.UsageError("--raw requires --key TEXT; with --key-separator, lines need not be JSON anyway")
    require_beside("--timestamp-unit", "--timestamp-field FIELD", is_there=timestamp_field)
    if timestamp_field is not None and (raw or key_separator is not None):
        raise click.UsageError("--timestamp-field requires lines of JSON or CSV, so neither --raw nor --key-separator")
    sources = [Path("-")] if not files else list(files)
    if name is not None:
        require_one_regular_file(sources)
    form = lines.LineFormat(
        key=None if key is None else key.encode(),
        key_field=key_field,
        key_separator=None if key_separator is None else key_separator.replace("\\t", "\t").encode(),
        is_json=not raw,
        timestamp_field=timestamp_field,
        timestamp_unit=timestamp_unit,
    )
    if is_csv:
        rows = RowParser(form, has_header=not no_header)
        parser = LineParser(rows.parse, quotes=lines.Quotes, has_header=not no_header, headers=headers)
    else:
        parser = LineParser(partial(lines.keyed_record, form=form), headers=headers)
    command = LineImport(context, topic, sources, parser=parser, skip_bad_lines=skip_bad_lines, name=name)
    command.run_command()
