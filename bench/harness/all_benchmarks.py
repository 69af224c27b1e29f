"""Runs every benchmark in a process of its own, and writes results and pages.

The results are stored after each benchmark. One that fails is stored with its error, and the next one runs. A single
benchmark can be measured again: the results of the others stay, if they are of this machine.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from bench.harness.performance_page import Machine, Result, Results, page, readme
from headgate.errors import HeadgateError
from headgate.process.child_process import python_module

LONGEST_SECONDS = 1800
"""A benchmark that takes longer is ended."""

Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def run_benchmark(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = python_module("bench", *arguments)
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=LONGEST_SECONDS)


def measure_all(
    docs: Mapping[str, str],
    folder: Path,
    *,
    only: str | None = None,
    run: Run = run_benchmark,
    progress: Callable[[str], None],
) -> Results:
    """Measure the benchmarks (name → docstring), or ``only`` one of them, and write the results into ``folder``.

    Raises HeadgateError: the results of the others are not stored, or of another machine and must not be mixed.
    """
    found = {} if only is None else _stored(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in docs if only is None else (only,):
        progress(f"measuring {name}")
        found[name] = _measure(name, run)
        ordered = [msgspec.structs.replace(found[each], doc=doc) for each, doc in docs.items() if each in found]
        results = Results(machine=this_machine(), benchmarks=ordered)
        (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    return results


def _stored(folder: Path) -> dict[str, Result]:
    path = folder / "results.json"
    if not path.exists():
        raise HeadgateError(f"{path} does not exist: measure all benchmarks first")
    stored = msgspec.json.decode(path.read_bytes(), type=Results)
    machine = this_machine()
    if msgspec.structs.replace(stored.machine, date=machine.date) != machine:
        raise HeadgateError(f"the results in {folder} are of another machine: measure all benchmarks again")
    return {result.name: result for result in stored.benchmarks}


def _measure(name: str, run: Run) -> Result:
    began = time.monotonic()
    try:
        done = run([name, "--json"])
    except subprocess.TimeoutExpired:
        return Result(name=name, error=f"it took more than {LONGEST_SECONDS} s")
    if done.returncode != 0:
        return Result(name=name, error=f"`python -m bench {name}` ended with exit code {done.returncode}")
    printed = json.loads(done.stdout.splitlines()[-1])
    added = {"seconds": round(time.monotonic() - began), "date": _today()}
    return msgspec.convert(printed | added, Result)


def write_pages(folder: Path, readme_path: Path) -> None:
    """Write the page beside ``folder``, and README's part, from the results in ``folder``."""
    results = msgspec.json.decode((folder / "results.json").read_bytes(), type=Results)
    folder.with_suffix(".md").write_text(page(results))
    if readme_path.exists():
        readme_path.write_text(readme(readme_path.read_text(), results))


def this_machine() -> Machine:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return Machine(
        processor=models[0].partition(":")[2].strip() if models else platform.machine(),
        cores=os.cpu_count() or 1,
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        python=platform.python_version(),
        date=_today(),
    )


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
