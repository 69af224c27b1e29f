"""What a program says about itself keeps to the protocol."""

import msgspec
import pytest

from headgate.client.consuming.consumer_context import host_name, library_version, program_text
from headgate.protocol.request_fields import ProgramText


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reader-1.example.org", "reader-1.example.org"),
        ("rechner schön", "rechner?sch?n"),
        ("\x1b[31mred", "?[31mred"),
        ("h" * 200, "h" * 128),
        ("", ""),
    ],
    ids=["a host", "letters", "an escape sequence", "long", "empty"],
)
def test_a_text_is_printable_and_bounded(text: str, said: str) -> None:
    assert program_text(text) == said
    assert msgspec.convert(program_text(text), ProgramText) == said


def test_this_program_has_a_host_and_a_version() -> None:
    assert host_name()
    assert library_version()[0].isdigit()
