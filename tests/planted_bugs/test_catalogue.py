"""Each planted bug fits the code and breaks a rule, every rule has one, and what found it is known and current."""

import ast
from pathlib import Path

import pytest

from tests.mutation.targets import modules_of
from tests.planted_bugs.__main__ import PAGE, stored_results
from tests.planted_bugs.catalogue import ROOT, RULED, CatalogueError, PlantedBug, load, rules_of
from tests.planted_bugs.table import Outcome, missing, not_found_yet, page
from tests.planted_bugs.trial import seeds_of
from tests.simulation.plan import plan_of

BUGS = load()
LEAST_BUGS = 60
MOST_NOT_FOUND_YET = 0
"""It only falls: `python -m tests.planted_bugs --all --table --seeds 100` on a quiet machine plays more seeds."""


def planted(folder: Path, before: str, after: str = "return 2") -> PlantedBug:
    (folder / "m.py").write_text(
        '"""Decides.\n\n1. One.\n2. Two.\n"""\n\n\nclass C:\n    def f(self):\n        return 1\n'
    )
    return PlantedBug(file="m.py", rule=1, name="x", before=before, after=after, root=folder)


def test_there_are_many() -> None:
    assert len(BUGS) >= LEAST_BUGS


@pytest.mark.parametrize("path", sorted({bug.file for bug in BUGS}))
def test_each_patch_applies_to_the_code_and_changes_it(path: str) -> None:
    source = (ROOT / path).read_text()
    unchanged = ast.dump(ast.parse(source))

    assert [] == [bug.key for bug in BUGS if bug.file == path and ast.dump(bug.tree(source)) == unchanged]


@pytest.mark.parametrize("module", [name for package in RULED for name in modules_of(package, ROOT)])
def test_every_numbered_rule_of_a_policy_module_has_a_bug(module: str) -> None:
    path = f"{module.replace('.', '/')}.py"
    rules = set(rules_of((ROOT / path).read_text()))
    broken = {bug.rule for bug in BUGS if bug.file == path} - {0}

    assert rules - broken == set(), "rules without a planted bug: add one to tests/planted_bugs/bugs"
    assert broken - rules == set(), "these bugs name rules that the docstring does not have"


def test_each_is_found_by_a_unit_test() -> None:
    assert missing(BUGS, stored_results()) == []


def test_no_more_bugs_than_now_wait_for_more_seeds() -> None:
    assert len(not_found_yet(BUGS, stored_results())) <= MOST_NOT_FOUND_YET


def test_the_page_is_current() -> None:
    assert page(BUGS, stored_results()) == PAGE.read_text(), "run python -m tests.planted_bugs --table"


def test_a_patch_whose_text_is_not_there_once_is_refused(tmp_path: Path) -> None:
    for before in ("return 3", "e"):
        with pytest.raises(CatalogueError, match=r"x: its text `before` is \d+ times in m.py, not once"):
            planted(tmp_path, before).lines  # noqa: B018


def test_a_bug_knows_the_function_that_it_changes(tmp_path: Path) -> None:
    inside, header = planted(tmp_path, "return 1"), planted(tmp_path, "    def f(self):\n        return 1")

    assert (inside.function, inside.lines) == ("C.f", (10, 10))
    assert (header.function, header.lines) == ("", (9, 10))


def test_the_rules_of_a_docstring_are_counted(tmp_path: Path) -> None:
    planted(tmp_path, "return 1")

    assert rules_of((tmp_path / "m.py").read_text()) == [1, 2]


def test_bugs_of_leadership_play_worlds_with_several_shards_or_daemons() -> None:
    bugs = {bug.file: bug for bug in BUGS}

    assert list(seeds_of(bugs["headgate/model/layout.py"], 3)) == [1, 2, 3]
    assert list(seeds_of(bugs["controller/leadership/transitions.py"], 3)) == [1, 2, 3]
    assert all(plan_of(seed).clustered for seed in seeds_of(bugs["controller/leadership/spread.py"], 50))


def test_what_is_not_proved_is_named(tmp_path: Path) -> None:
    bug = planted(tmp_path, "return 1")
    unseen = PlantedBug(**{**vars(bug), "unseen": "a reason"})
    found = Outcome(digest=bug.digest, unit_test="tests/test_m.py::test_f", seeds=3, seeds_played=40)
    unfound = Outcome(digest=bug.digest, unit_test="", seeds=None, seeds_played=40)

    assert missing([bug], {bug.key: found}) == not_found_yet([bug], {bug.key: found}) == []
    assert missing([bug], {bug.key: unfound}) == ["m.py: x: no unit test finds it"]
    assert "not found by 40 seeds" in not_found_yet([bug], {bug.key: unfound})[0]
    assert not_found_yet([unseen], {bug.key: unfound}) == []
    assert "not planted since it changed" in missing([bug], {})[0]
    changed = Outcome(digest="another", unit_test="t", seeds=1, seeds_played=1)
    assert "not planted since it changed" in missing([bug], {bug.key: changed})[0]
    assert "| 1 | x | - | no: a reason | `` |" in page([unseen], {bug.key: unfound})
    assert "| 1 | x | - | not in 40 | `` |" in page([bug], {bug.key: unfound})
