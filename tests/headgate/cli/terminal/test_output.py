"""Tables: columns are as wide as their characters are in a terminal, and numbers keep their ends."""

import pytest

from headgate.cli.terminal.output import fitting_columns, format_bytes, print_table

WIDE = "注文" * 8


def test_characters_of_two_cells_count_twice(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    assert ([0, 1], 20) == fitting_columns(("key", "records"), [[WIDE, "1234567"]], (), {"records"}, 30)
    assert [1] == fitting_columns(("key", "reason"), [["k", WIDE]], ("key",), (), 32)[0], "no space for both"
    monkeypatch.setattr("headgate.cli.terminal.output.available_columns", lambda _: 30)
    print_table(("key", "records"), [(WIDE, 1_234_567)])
    assert capsys.readouterr().out.splitlines()[-1].endswith("…   1234567")


@pytest.mark.parametrize(
    ("size", "text"), [(999, "999 B"), (1000, "1.0 kB"), (56_000, "56.0 kB"), (10**18, "1000.0 PB")]
)
def test_sizes_are_in_powers_of_a_thousand(size: int, text: str):
    assert text == format_bytes(size)
