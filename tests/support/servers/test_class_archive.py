"""The options with which JVMs of the tests use the archive; whether it helps is a measurement (docs/decisions/testing.md)."""

from __future__ import annotations

from pathlib import Path

from tests.support.servers.class_archive import ARCHIVE, archive_options

MAKEFILE = Path(__file__).parents[3] / "Makefile"


def test_jvms_get_no_option_unless_the_archive_exists(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    assert archive_options(archive) == ""

    archive.touch()
    assert archive_options(archive).split()[0] == f"-XX:SharedArchiveFile={archive}"


def test_make_writes_the_archive_that_the_tests_use() -> None:
    assert f"\nSPARK_CLASSES := {ARCHIVE.relative_to(MAKEFILE.parent)}\n" in MAKEFILE.read_text()
