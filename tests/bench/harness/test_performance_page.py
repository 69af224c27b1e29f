"""docs/performance.md is made from the stored results."""

from pathlib import Path

from bench.harness.all_benchmarks import write_pages

ROOT = Path(__file__).parents[3]


def test_the_committed_page_is_made_from_the_committed_results(tmp_path: Path) -> None:
    """`make performance` writes all of them. Edit the program, not the page."""
    folder = ROOT / "docs" / "performance"
    copy = tmp_path / "docs" / "performance"
    copy.mkdir(parents=True)
    (copy / "results.json").write_bytes((folder / "results.json").read_bytes())
    (tmp_path / "README.md").write_bytes((ROOT / "README.md").read_bytes())

    write_pages(copy, tmp_path / "README.md")

    for name in ("docs/performance.md", "README.md"):
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()
