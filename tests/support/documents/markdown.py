"""Read documents of docs/ in tests: sections, tables and fenced examples."""

import re
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


@dataclass
class Section:
    """One heading and the text up to the next heading of any level."""

    heading: str
    lines: list[str] = field(default_factory=list)

    def table(self) -> list[list[str]]:
        """Return the rows of the section's only table, without its head; no rows if it has no table."""
        rows = [_cells(line) for line in self.lines if line.startswith("|")]
        assert sum(set(row) == {"---"} for row in rows) <= 1, f"{self.heading}: more than one table in the section"
        return rows[2:]

    def fenced(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```$", "\n".join(self.lines), re.MULTILINE | re.DOTALL)


def sections(name: str) -> dict[str, Section]:
    found = [Section("")]
    in_fence = False
    for line in (DOCS / name).read_text().splitlines():
        in_fence ^= line.startswith("```")
        if line.startswith("#") and not in_fence:
            found.append(Section(line.lstrip("#").strip()))
        else:
            found[-1].lines.append(line)
    by_heading = {section.heading: section for section in found}
    assert len(by_heading) == len(found), "a heading occurs twice"
    return by_heading


def ticked(cell: str) -> list[str]:
    """Return the texts between backticks in a cell, in order."""
    return re.findall(r"`([^`]*)`", cell)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
