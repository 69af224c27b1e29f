"""Draws the layers of the import contracts: ``python -m tests.support.documents.package_diagram`` updates the document.

A test checks that docs/architecture.md is up to date.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "architecture.md"
WIDTH = 88


def drawing() -> str:
    """Return one drawing for each contract of layers, upper layers first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    parts = []
    for contract in contracts:
        if contract["type"] == "layers":
            parts += [f"{contract['name']}:", "", *_rows([layer.split(" | ") for layer in contract["layers"]]), ""]
    return "\n".join(["```text", *parts[:-1], "```"])


def updated(document: str) -> str:
    """Return the document with the current drawing."""
    return re.sub(r"```text\nImports run one way.*?```", lambda _: drawing(), document, flags=re.DOTALL)


def _rows(layers: Sequence[Sequence[str]]) -> list[str]:
    """Draw boxes of equal width; of the width of their names where those do not fit."""
    lines = []
    for names in layers:
        equal = WIDTH // len(names) - 4
        widths = [equal if max(map(len, names)) <= equal else len(name) for name in names]
        lines.append("  ".join("┌" + "─" * width + "┐" for width in widths))
        lines.append("  ".join("│" + name.center(width) + "│" for name, width in zip(names, widths, strict=True)))
        lines.append("  ".join("└" + "─" * width + "┘" for width in widths))
    return lines


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    DOCUMENT.write_text(updated(DOCUMENT.read_text()))
