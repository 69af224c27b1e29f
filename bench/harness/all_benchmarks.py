"""Runs every benchmark in a process of its own, and writes results, charts and pages.

The results are stored after each benchmark. One that fails is stored with its error, and the next one runs.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from bench.harness.performance_page import Machine, Result, Results, overview, page, readme

LONGEST_SECONDS = 1800
"""A benchmark that takes longer is ended."""

Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def run_benchmark(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run ``python -m bench`` with ``arguments``; its progress goes to standard error."""
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=LONGEST_SECONDS)


def measure_all(
    docs: Mapping[str, str],
    can_plot: frozenset[str],
    folder: Path,
    *,
    quick: bool,
    run: Run = run_benchmark,
    progress: Callable[[str], None],
) -> Results:
    """Measure the benchmarks (name → docstring), and write their results and charts into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    measured: list[Result] = []
    results = Results(machine=this_machine(), quick=quick, benchmarks=measured)
    for number, (name, doc) in enumerate(docs.items(), 1):
        progress(f"{number} of {len(docs)}: {name}")
        plot = folder / f"{name}.svg" if name in can_plot else None
        measured.append(_measure(name, doc, plot, quick=quick, run=run))
        (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    return results


def _measure(name: str, doc: str, plot: Path | None, *, quick: bool, run: Run) -> Result:
    arguments = [name, "--json", *["--quick"] * quick, *(("--plot", str(plot)) if plot is not None else ())]
    began = time.monotonic()
    try:
        done = run(arguments)
    except subprocess.TimeoutExpired:
        return Result(name=name, doc=doc, error=f"it took more than {LONGEST_SECONDS} s")
    if done.returncode != 0:
        return Result(name=name, doc=doc, error=f"`python -m bench {name}` ended with exit code {done.returncode}")
    printed = json.loads(done.stdout.splitlines()[-1])
    added = {"doc": doc, "seconds": round(time.monotonic() - began), "plot": plot is not None}
    return msgspec.convert(printed | added, Result)


def write_pages(folder: Path, readme_path: Path) -> None:
    """Write the page beside ``folder``, the overview in it, and README's part, from the results in ``folder``."""
    results = msgspec.json.decode((folder / "results.json").read_bytes(), type=Results)
    (folder / "overview.svg").write_text(overview(results))
    folder.with_suffix(".md").write_text(page(results, folder.name))
    if readme_path.exists():
        shown = os.path.relpath(folder, readme_path.parent)
        readme_path.write_text(readme(readme_path.read_text(), results, shown))


def this_machine() -> Machine:
    """Return what is known about this machine."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return Machine(
        processor=models[0].partition(":")[2].strip() if models else platform.machine(),
        cores=os.cpu_count() or 1,
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        python=platform.python_version(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
    )
