"""Mutants: which faults a source file can get, and which of them a sample contains."""

import ast
import re
from pathlib import Path

import pytest

from tests.mutation.__main__ import main, summarize
from tests.mutation.fork_server import Coverage, Result
from tests.mutation.mutants import Mutant, apply, mutants_of, sample
from tests.mutation.targets import DOCUMENT_TESTS, PACKAGES, STATEFUL, equivalents, folders_of_tests, modules_of

ROOT = Path(__file__).parents[2]

SOURCE = '''\
"""Docstring with a number: 1."""

LIMIT = 3
Kind = int | str


class Window:
    """Another docstring."""

    size: int = 4

    def accept(self, number: int, *, strict: bool = False) -> bool:
        """Accept a number."""
        assert number > 0
        self.last = number
        return number < LIMIT or not strict
'''


def faults(source: str = SOURCE) -> set[tuple[str, str, str, str]]:
    return {(mutant.function, mutant.kind, mutant.old, mutant.new) for mutant in mutants_of(source, "window")}


def test_every_kind_is_found_where_it_belongs() -> None:
    expected = {
        ("", "constant", "3", "4"),
        ("", "constant", "3", "2"),
        ("", "constant", "4", "5"),
        ("", "constant", "4", "3"),
        ("Window.accept", "deletion", "self.last = number", "pass"),
        ("Window.accept", "comparison", "number < LIMIT", "number <= LIMIT"),
        ("Window.accept", "boolean", "number < LIMIT or not strict", "number < LIMIT and (not strict)"),
        ("Window.accept", "boolean", "not strict", "strict"),
        (
            "Window.accept",
            "return",
            "return number < LIMIT or not strict",
            "return not (number < LIMIT or not strict)",
        ),
    }

    assert expected == faults()


@pytest.mark.parametrize("mutant", mutants_of(SOURCE, "window"), ids=Mutant.describe)
def test_applying_a_mutant_changes_the_source(mutant: Mutant) -> None:
    changed = ast.unparse(apply(SOURCE, mutant))

    assert ast.unparse(ast.parse(SOURCE)) != changed
    assert mutant.new.removeprefix("return ") in changed


def test_equal_faults_of_a_function_have_different_keys() -> None:
    twice = "def f(a: int) -> int:\n    b = a + 1\n    c = a + 1\n    return b * c\n"

    assert len({mutant.key for mutant in mutants_of(twice, "m")}) == len(mutants_of(twice, "m"))


def test_a_sample_stays_the_same_when_lines_move() -> None:
    moved = SOURCE.replace("LIMIT = 3", "# A comment.\n\nLIMIT = 3")

    before = [mutant.key for mutant in sample(mutants_of(SOURCE, "window"), 4, seed=7)]
    after = [mutant.key for mutant in sample(mutants_of(moved, "window"), 4, seed=7)]

    assert before == after
    assert before != [mutant.key for mutant in sample(mutants_of(SOURCE, "window"), 4, seed=8)]


@pytest.mark.parametrize("package", [*PACKAGES, *STATEFUL])
def test_a_name_that_is_mutated_by_default_is_that_of_modules_with_tests(package: str) -> None:
    modules = modules_of(package, ROOT)

    assert modules
    assert all(any((ROOT / folder).is_dir() for folder in folders_of_tests(module)) for module in modules)


def test_the_pure_modules_of_leadership_are_mutated_by_default() -> None:
    """Beside shells such as those of ZooKeeper. The first paragraph of their docstring says so."""
    modules = modules_of("controller.leadership", ROOT)
    paragraphs = {
        name: (ast.get_docstring(ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text())) or "").split("\n\n")[0]
        for name in modules
    }
    pure = {name for name, text in paragraphs.items() if re.search(r"\bPure\b", text)}

    assert pure
    assert pure == {name for name in PACKAGES if name.startswith("controller.leadership.")}


def test_tests_that_read_a_constant_may_notice_it_without_executing_its_module() -> None:
    own, document = "tests/headgate/protocol/test_cluster.py::t", "tests/headgate/protocol/test_protocol_document.py::t"
    other = "tests/headgate/protocol/test_paging.py::t"
    coverage = Coverage(seconds={other: 1.0, document: 2.0, own: 3.0})
    [constant, *_] = mutants_of("LIMIT = 3", "headgate.protocol.cluster")
    [in_function, *_] = mutants_of("def f() -> int:\n    return 3", "headgate.protocol.cluster")

    assert [document, own] == coverage.tests_of("headgate/protocol/cluster.py", constant)
    assert [] == coverage.tests_of("headgate/protocol/cluster.py", in_function)


def test_the_tests_of_documents_exist() -> None:
    assert all((ROOT / path).exists() for path in DOCUMENT_TESTS.values())


def test_a_name_without_modules_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--packages", "coordinator.misspelled"])

    assert "no module or package is called coordinator.misspelled" in capsys.readouterr().err


def test_each_mutant_that_is_explained_as_equivalent_exists() -> None:
    explained = equivalents()
    modules = {key.partition("|")[0] for key in explained}
    sources = {module: (ROOT / f"{module.replace('.', '/')}.py").read_text() for module in modules}
    keys = {mutant.key for module, source in sources.items() for mutant in mutants_of(source, module)}

    assert set(explained) <= keys
    assert all(explained.values())


def test_an_equivalent_mutant_is_listed_and_does_not_count() -> None:
    module = "headgate.ledger.facts"
    found = mutants_of((ROOT / "headgate/ledger/facts.py").read_text(), module)
    equivalent = next(mutant for mutant in found if mutant.key in equivalents())
    other = next(mutant for mutant in found if mutant.key not in equivalents())
    summary = summarize([Result(equivalent, "survived"), Result(other, "killed")], mutants=2, seed=1)

    assert (summary["score"], summary["sample"], summary["survivors"]) == (1.0, 1, [])
    assert len(summary["equivalent"]) == 1  # type: ignore[arg-type]
