"""The TOML that we write is the TOML that we read."""

from __future__ import annotations

import tomllib

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.settings.toml_text import toml_text

NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
VALUES = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    )
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(NAMES, VALUES), st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES)))
def test_what_is_written_is_read_back_as_it_was(values: dict, sections: dict):
    values = {f"top_{name}": value for name, value in values.items()}

    read = tomllib.loads(toml_text("a comment\nof two lines", values, sections))

    assert read == values | sections


def test_what_is_not_set_is_left_out():
    assert toml_text("c", {"a": None, "b": 1}, {"s": {"x": None}}) == "# c\nb = 1\n\n[s]\n"
