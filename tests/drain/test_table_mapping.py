"""The file that maps the tables of external topics."""

from pathlib import Path

import pytest

from drain.table_mapping import AcknowledgementsTable, EntriesTable, ExternalTables, read_tables
from headgate.errors import ConfigError

DOCUMENTED = Path(__file__).parents[2] / "drain" / "table_mapping.py"


def written(folder: Path, text: str) -> Path:
    path = folder / "external.toml"
    path.write_text(text, "utf-8-sig")
    return path


def test_the_documented_example_is_valid(tmp_path: Path) -> None:
    text = DOCUMENTED.read_text()
    block = text[text.index("    [external.orders.entries]") : text.index("``path`` is")]

    assert {
        "orders": ExternalTables(
            entries=EntriesTable(
                path="/srv/orders/entries", segment="shard", offset="seq", size_bytes="bytes", timestamp="at"
            ),
            acknowledgements=AcknowledgementsTable(
                path="/srv/orders/acks", subscription_id="app", segment="shard", end_offset="next", first_offset="first"
            ),
        )
    } == read_tables(written(tmp_path, block))


def test_the_documented_example_with_opaque_positions_is_valid(tmp_path: Path) -> None:
    text = DOCUMENTED.read_text()
    block = text[text.index("    [external.clicks.entries]") : text.index('"""', 3)]

    column = "sequence_number"
    entries = EntriesTable(path="/srv/clicks/entries", segment="shard_id", offset=column)
    assert {"clicks": ExternalTables(entries=entries)} == read_tables(written(tmp_path, block))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[external.t.entries\n", "external.toml"),
        ('[external.t.entries]\npath = "p"\nsegment = "s"\n', "t.entries.offset: this setting is required"),
        ('[external.t.entries]\npath = "p"\nsegment = "s"\noffset = "o"\nformat = "xml"\n', "'xml'; use .*\"delta"),
        ('[external.t.entrys]\npath = "p"\n', r"t.entrys: unknown setting; did you mean entries"),
        ('[extrenal.t.entries]\npath = "p"\n', "unknown section; did you mean external"),
        ('[external.t.entries]\npath = ""\nsegment = "s"\noffset = "o"\n', "length >= 1; use text"),
    ],
    ids=["not TOML", "missing column", "unknown format", "misspelled table", "misspelled section", "empty path"],
)
def test_an_error_names_the_file_and_the_field(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        read_tables(written(tmp_path, text))
    assert "external.toml: " in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file or directory$"):
        read_tables(tmp_path / "nowhere.toml")
