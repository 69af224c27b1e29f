"""docs/performance.md: measured in one run, and made from the stored results."""

import json
import subprocess
from pathlib import Path

from bench.harness.all_benchmarks import measure_all, this_machine, write_pages
from bench.harness.performance_page import Results, page

ROOT = Path(__file__).parents[3]
DOCS = {"fast": "How fast.\n\nWhy.", "broken": "Cannot run.", "drain_release": "Wait of a child."}


def fake_run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    name = arguments[0]
    value = 12.0 if name == "drain_release" else 3.0
    printed = {"name": name, "value": value, "unit": "times", "goal": 2.0, "goal_met": name == "drain_release"}
    result = printed | {
        "better": "higher" if name == "drain_release" else "lower",
        "parts": {"median_ms": 5.2, "p95_ms": 7},
    }
    return subprocess.CompletedProcess(arguments, int(name == "broken"), f"progress\n{json.dumps(result)}\n", "")


def measured(folder: Path) -> Results:
    return measure_all(DOCS, folder, run=fake_run, progress=lambda _: None)


def test_one_benchmark_is_measured_again_beside_the_results_of_the_others(tmp_path: Path) -> None:
    first = measured(tmp_path)
    assert ["fast", "broken", "drain_release"] == [result.name for result in first.benchmarks]

    ran: list[str] = []

    def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        ran.append(arguments[0])
        printed = fake_run(["fast"]).stdout.replace("fast", arguments[0])
        return subprocess.CompletedProcess(arguments, 0, printed, "")

    again = measure_all(DOCS, tmp_path, only="broken", run=run, progress=lambda _: None)

    assert ["broken"] == ran
    assert list(DOCS) == [result.name for result in again.benchmarks]
    assert [3.0, 3.0, 12.0] == [result.value for result in again.benchmarks]
    assert f"Measured on {this_machine().date} in 0 s." in page(again)
    assert "| Last acknowledgement to the open child | 5 ms, 95 % in 7 ms |" in page(again)


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
