"""The site: `make docs` builds it without a warning, and its pages load nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "docs"
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|use|image)\b[^>]*?\b(?:src|href)=[\"']((?:https?:)?//[^\"']+)"
    r"|<link\b(?![^>]*rel=[\"']canonical)[^>]*\bhref=[\"']((?:https?:)?//[^\"']+)"
)
LOADED_BY_STYLE = re.compile(r"url\([\"']?((?:https?:)?//[^)\"']+)|@import\s+[\"']((?:https?:)?//[^\"']+)")


@pytest.fixture(scope="module")
def site() -> Path:
    """Build the site as `make docs` does: a warning fails it, and so does a broken link or an undocumented name."""
    built = subprocess.run(
        [sys.executable, "-m", "sitebuild"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'docs'}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (0, "") == (built.returncode, built.stderr)
    return SITE


@pytest.mark.system
def test_no_page_loads_a_script_a_font_or_an_image_from_elsewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".svg")]
    styles = list(site.rglob("*.css"))

    assert len(pages) > 40
    assert styles
    assert [] == [(str(page), found[0]) for page in pages for found in LOADED.finditer(page.read_text())]
    assert [] == [(str(path), found[0]) for path in styles for found in LOADED_BY_STYLE.finditer(path.read_text())]


@pytest.mark.system
@pytest.mark.parametrize(
    ("page", "anchor"),
    [
        ("reference/configuration", "broker-port"),
        ("reference/client-configuration", "linger-seconds"),
        ("reference/commands", "headgate-topic-create"),
        ("reference/python", "headgate.sync.Consumer"),
        ("reference/metrics", "headgate-leader-terms-started-total"),
    ],
    ids=["setting", "client setting", "command", "name in Python", "metric"],
)
def test_a_reference_has_an_anchor_for_each_entry(site: Path, page: str, anchor: str) -> None:
    assert f'id="{anchor}"' in (site / "docs" / f"{page}.html").read_text()
