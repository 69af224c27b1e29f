"""The pictures of docs/concepts show what the program decides."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tests.support.documents.concept_drawings import DRAWINGS, FOLDER, handover_messages


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_is_up_to_date(name: str) -> None:
    """`python -m tests.support.documents.concept_drawings` draws it again."""
    assert DRAWINGS[name]() == (FOLDER / name).read_text()


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_is_a_document_with_a_name_and_colors_for_dark_pages(name: str) -> None:
    picture = ET.fromstring((FOLDER / name).read_text())

    assert "{http://www.w3.org/2000/svg}svg" == picture.tag
    assert picture.get("aria-label")
    assert "prefers-color-scheme: dark" in (FOLDER / name).read_text()


def test_every_picture_is_shown_on_a_page() -> None:
    pages = "".join(page.read_text() for page in FOLDER.glob("*.md"))

    assert [] == [name for name in DRAWINGS if f"]({name})" not in pages]


def test_the_picture_of_a_handover_moves_one_segment_in_the_only_safe_sequence() -> None:
    """So that an empty plan does not leave an empty picture."""
    texts = [text for _, _, text in handover_messages()]

    assert [
        "register",
        "revoke segment 2",
        "finishes what it has delivered",
        "acknowledge, then confirm 2",
        "segment 2 is released: confirmed",
        "grant segment 2, generation 2",
    ] == texts
