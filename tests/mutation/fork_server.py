"""Runs mutants against unit tests, one process per mutant, and imports and collects only once.

pytest collects the tests in this process. A forked child runs them once under a tracer, which tells which tests execute
which lines. Then each mutant gets a forked child: it exchanges the code of the function that has the fault, and runs the
tests that execute the changed lines until one fails. A fault outside functions needs the module to be imported again, so
that child forgets the project's modules and starts pytest in itself. Its tests include all of the module's own file and of
its document: a test that compares a constant with a promise need not execute a line of the module.

Survivors cost the most, so their tests are bounded: property tests play fewer examples than usual, and the tests of one
mutant, its module's own first, then the quickest first, end with those that add up to `MOST_SECONDS`.

A child that uses far more processor time or memory than the tests need was changed into an endless loop, and one that
uses no processor time for long waits for what never happens: both count as killed. Requires Linux.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Generic, Protocol, TypeVar

import hypothesis
import pytest

from tests.mutation.targets import folders_of_tests, own_test_file, tests_of_declarations

PROJECT = ("headgate", "coordinator", "controller", "drain", "metrics", "bench", "demo", "tests")
UNIT = "not contract and not security and not simulation and not spark and not system"
OPTIONS = ["-qq", "-s", "-m", UNIT, "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0", "-o", "addopts=",
           "--import-mode=importlib", "--hypothesis-profile=mutation",
           "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # fmt: skip
SETTINGS_ATTRIBUTE = "_hypothesis_internal_use_settings"  # where Hypothesis has a test's settings, and no public way
MEMORY_BYTES = 4 << 30
"""More than a process has when it starts. The tracer needs two to three GiB for the tests of the protocol."""
# A test may take this many times the processor time that it takes without a mutant (measured under the tracer, thus
# already two or three times too long), and a few seconds more.
TIME_FACTOR = 2
MOST_SECONDS = 10.0
MOST_EXAMPLES = 30
SPARE_SECONDS = 2
IDLE_SECONDS = 15.0
"""No test waits for so long: most run in virtual time, the others wait for a second or two."""
MIN_TICKS = 10
"""Of 10 ms each. A child that uses less in `IDLE_SECONDS` is idle, though a timer may wake it."""


class Fault(Protocol):
    """A fault in one module: a mutant."""

    @property
    def module(self) -> str:
        """Dotted name."""

    @property
    def function(self) -> str:
        """Qualified name of the outermost function with the fault; "" outside functions."""

    @property
    def lines(self) -> tuple[int, int]:
        """First and last of the lines of which a test must execute one to notice the fault."""

    def tree(self, source: str) -> ast.Module:
        """Return the syntax tree of the module with the fault in it."""


FaultT = TypeVar("FaultT", bound=Fault)


@dataclass(frozen=True)
class Result(Generic[FaultT]):
    """Outcome of one mutant: `killed`, `timeout` (killed too), `survived`, or `uncovered` (no test executes it)."""

    mutant: FaultT
    outcome: str
    killer: str = ""

    @property
    def noticed(self) -> bool:
        """Whether a test would have failed."""
        return self.outcome in {"killed", "timeout"}


@dataclass
class Coverage:
    """Which tests execute which lines, and how long each takes."""

    tests: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    seconds: dict[str, float] = field(default_factory=dict)

    def tests_of(self, path: str, mutant: Fault) -> list[str]:
        """Return the tests that may notice a mutant, its module's own first, then the quickest first."""
        lines = self.tests.get(path, {})
        first, last = mutant.lines
        numbers = range(first, last + 1) if mutant.function else lines
        folders = tuple(f"{folder}/" for folder in folders_of_tests(mutant.module))
        names = {test for number in numbers for test in lines.get(number, ()) if test.startswith(folders)}
        first_files = (own_test_file(mutant.module),)
        if not mutant.function:
            first_files = tests_of_declarations(mutant.module)
            names |= {test for test in self.seconds if test.startswith(first_files)}
        chosen, total = [], 0.0
        for test in sorted(names, key=lambda test: (not test.startswith(first_files), self.seconds[test], test)):
            total += self.seconds[test]
            if chosen and total > MOST_SECONDS:
                break
            chosen.append(test)
        return chosen


class ForkServer(Generic[FaultT]):
    """A pytest plugin: in place of running the collected tests once, it runs them for each mutant."""

    def __init__(self, root: Path, mutants: Sequence[FaultT], report: Callable[[Result[FaultT]], None]) -> None:
        self._root = root
        self._mutants = mutants
        self._report = report
        self._items: dict[str, pytest.Item] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let property tests play fewer examples."""
        for item in items:
            function = getattr(item, "obj", None)
            settings = getattr(function, SETTINGS_ATTRIBUTE, None)
            if settings is not None and settings.max_examples > MOST_EXAMPLES:
                setattr(function, SETTINGS_ATTRIBUTE, hypothesis.settings(settings, max_examples=MOST_EXAMPLES))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure coverage, then run every mutant."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        self._items = {item.nodeid: item for item in session.items}
        coverage = self._measure()
        for mutant in self._mutants:
            tests = coverage.tests_of(str(_path(self._root, mutant.module)), mutant)
            self._report(self._run(mutant, tests, coverage))
        return True

    def _measure(self) -> Coverage:
        files = {str(_path(self._root, mutant.module)) for mutant in self._mutants}
        outcome, output = in_child(lambda: _trace(list(self._items.values()), files), cpu_seconds=3600)
        if outcome != 0:
            raise RuntimeError(f"the tests do not pass without a mutant: {output or outcome}")
        coverage = Coverage()
        measured = json.loads(output)
        coverage.seconds.update(measured["seconds"])
        for path, test, lines in measured["lines"]:
            for line in lines:
                coverage.tests[path][line].add(test)
        return coverage

    def _run(self, mutant: FaultT, tests: list[str], coverage: Coverage) -> Result[FaultT]:
        if not tests:
            return Result(mutant, "uncovered")
        limit = 10 * SPARE_SECONDS + int(TIME_FACTOR * sum(coverage.seconds[test] for test in tests))
        outcome, output = in_child(lambda: self._run_tests(mutant, tests, coverage.seconds), cpu_seconds=limit)
        if outcome == 0:
            return Result(mutant, "survived")
        return Result(mutant, "killed" if outcome == 1 else "timeout", output)

    def _run_tests(self, mutant: Fault, tests: list[str], seconds: dict[str, float]) -> tuple[int, str]:
        path = _path(self._root, mutant.module)
        tree = mutant.tree(path.read_text())
        if exchange_code(mutant, compile(tree, str(path), "exec")):
            failed = _first_failure([self._items[test] for test in tests], seconds)
            return int(bool(failed)), failed
        return _import_and_run(mutant, tree, path, tests)


def run(
    root: Path,
    mutants: Sequence[FaultT],
    report: Callable[[Result[FaultT]], None],
    *,
    own_tests_only: bool = False,
) -> int:
    """Run the mutants against the unit tests below `root`, and return pytest's exit code.

    ``own_tests_only``: only against the test files that mirror their modules.
    """
    hypothesis.settings.register_profile(
        "mutation",
        deadline=None,
        max_examples=MOST_EXAMPLES,
        derandomize=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    folders = sorted(
        {own_test_file(mutant.module) for mutant in mutants}
        if own_tests_only
        else {folder for mutant in mutants for folder in folders_of_tests(mutant.module)}
    )
    existing = [folder for folder in folders if (root / folder).exists()]
    return int(pytest.main([*OPTIONS, "--rootdir", str(root), *existing], plugins=[ForkServer(root, mutants, report)]))


def _path(root: Path, module: str) -> Path:
    return root / (module.replace(".", "/") + ".py")


def in_child(
    work: Callable[[], tuple[int, str]], *, cpu_seconds: int, idle_seconds: float = IDLE_SECONDS
) -> tuple[int, str]:
    """Run `work` in a forked process; return its code and text, or a negative code if it was ended from outside."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.close(reader)
            _limit(cpu_seconds)
            silence = os.open(os.devnull, os.O_RDWR)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            code, text = work()
            with os.fdopen(writer, "w") as stream:
                stream.write(text)
        finally:
            os._exit(code)
    os.close(writer)
    text = _read(reader, child, idle_seconds)
    if text is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), text or ""


def _limit(cpu_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _read(reader: int, child: int, idle_seconds: float) -> str | None:
    """Return all that the child writes, or None if it is idle for too long."""
    parts = []
    _, used = _activity(child)
    busy_at = time.monotonic()
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while True:
            ready, _, _ = select.select([stream], [], [], min(1.0, idle_seconds))
            if ready:
                part = stream.read(1 << 16)
                if not part:
                    return b"".join(parts).decode()
                parts.append(part)
                continue
            runnable, ticks = _activity(child)
            if runnable or ticks - used >= MIN_TICKS:
                used, busy_at = ticks, time.monotonic()
            elif time.monotonic() - busy_at > idle_seconds:
                return None


def _activity(process: int) -> tuple[bool, int]:
    """Return whether a child runs or waits for a processor or a disk, and its processor time in ticks of the kernel.

    On a busy machine a child that waits for a processor gets little time, but is not idle. See proc_pid_stat(5).
    """
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return fields[0] in {"R", "D"}, int(fields[11]) + int(fields[12])


def _first_failure(items: Sequence[pytest.Item], seconds: dict[str, float]) -> str:
    """Run tests in turn up to a failure and return its test. A test that takes too long ends the process."""
    first = _FirstFailure.among(items)
    for item, next_item in _pairs(items):
        signal.setitimer(signal.ITIMER_VIRTUAL, SPARE_SECONDS + TIME_FACTOR * seconds[item.nodeid])
        _run_test(item, next_item)
        if first.name:
            break
    return first.name


def _pairs(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True)


def _run_test(item: pytest.Item, next_item: pytest.Item | None) -> None:
    """Run one test through pytest's hook, because the project's own part of it restores what a test has changed."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)


def _trace(items: Sequence[pytest.Item], files: set[str]) -> tuple[int, str]:
    """Run all tests, and return which lines of `files` each executes and how long it takes, as JSON."""
    executed: dict[str, set[int]] = defaultdict(set)

    def trace(frame: FrameType, _: str, __: object) -> Callable[..., Any] | None:
        lines = executed[frame.f_code.co_filename] if frame.f_code.co_filename in files else None
        if lines is None:
            return None

        def local(inner: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "line":
                lines.add(inner.f_lineno)
            return local

        return local

    seconds: dict[str, float] = {}
    found = []
    first = _FirstFailure.among(items)
    for item, next_item in _pairs(items):
        executed.clear()
        began = time.process_time()
        sys.settrace(trace)
        _run_test(item, next_item)
        sys.settrace(None)
        seconds[item.nodeid] = time.process_time() - began
        if first.name:
            return 1, f"{first.name}\n{first.text[-2000:]}"
        found += [(path, item.nodeid, sorted(lines)) for path, lines in executed.items()]
    return 0, json.dumps({"seconds": seconds, "lines": found})


def exchange_code(mutant: Fault, code: CodeType) -> bool:
    """Give the loaded function its faulty code; return False if the fault lies where this cannot be done."""
    module = sys.modules.get(mutant.module)
    function = _function(module, mutant.function) if module and mutant.function else None
    changed = _code_of(code, mutant.function) if function else None
    if function is None or changed is None or changed.co_firstlineno != function.__code__.co_firstlineno:
        return False
    try:
        function.__code__ = changed
    except ValueError:  # it has other free variables than before
        return False
    return True


def _function(module: ModuleType, qualified_name: str) -> FunctionType | None:
    found: object = module
    for name in qualified_name.split("."):
        found = vars(found).get(name)
        if found is None:
            return None
    while not isinstance(found, FunctionType):
        for attribute in ("__func__", "fget", "func", "__wrapped__"):
            if hasattr(found, attribute):
                found = getattr(found, attribute)
                break
        else:
            return None
    return found


def _code_of(code: CodeType, qualified_name: str) -> CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == qualified_name:
                return constant
            inner = _code_of(constant, qualified_name)
            if inner is not None:
                return inner
    return None


def import_faulty(module: str, tree: ast.Module, path: Path) -> None:
    """Forget the project's modules; the next import of ``module`` gets the code of ``tree``."""
    for name in [name for name in sys.modules if name.partition(".")[0] in PROJECT]:
        del sys.modules[name]
    sys.meta_path.insert(0, _MutatedFinder(module, tree, path))


class _MutatedFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a given syntax tree."""

    def __init__(self, module: str, tree: ast.Module, path: Path) -> None:
        self._module = module
        self._code = compile(tree, str(path), "exec")
        self._path = path

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, vars(module))  # what an import does


class _FirstFailure:
    """Remembers the first test that fails, or a file that cannot be collected."""

    def __init__(self) -> None:
        self.name = ""
        self.text = ""

    @classmethod
    def among(cls, items: Sequence[pytest.Item]) -> _FirstFailure:
        """Return one that sees the outcomes of collected tests."""
        first = cls()
        items[0].config.pluginmanager.register(first)
        return first

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._see(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._see(report)

    def _see(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name, self.text = report.nodeid, report.longreprtext


def _import_and_run(mutant: Fault, tree: ast.Module, path: Path, tests: list[str]) -> tuple[int, str]:
    """Import the project again with the mutated module, and run the files of the given tests up to a failure."""
    import_faulty(mutant.module, tree, path)
    first = _FirstFailure()
    code = int(pytest.main([*OPTIONS, "-x", *tests], plugins=[first]))
    return int(code != 0), first.name
