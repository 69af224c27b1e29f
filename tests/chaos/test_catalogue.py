"""The faults of the catalogue, and the plan that follows from the options of a run."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.__main__ import Options, command, make_plan
from chaos.faults.catalogue import CATALOGUE

OPTIONS = Options(
    minutes=12, seed=1, names=(), at_once=1, fault_seconds=None, rest_seconds=8.0, rate=200, with_spark=True
)


def options(**changes: object) -> Options:
    return Options(**{field: getattr(OPTIONS, field) for field in OPTIONS.__slots__} | changes)


def test_twelve_minutes_have_every_fault() -> None:
    made, reasons = make_plan(OPTIONS, has_shim=True)

    assert set(CATALOGUE) <= {fault.name for fault in made.faults}
    assert {} == reasons
    assert 720 == made.seconds


def test_a_short_run_and_a_machine_without_a_compiler_say_what_they_leave_out() -> None:
    made, reasons = make_plan(options(minutes=2, with_spark=False), has_shim=False)

    assert set(CATALOGUE) == {fault.name for fault in made.faults} | set(reasons)
    assert reasons["disk-full"] == "there is no C compiler (cc, gcc or clang)"
    assert reasons["spark-killed"] == "the run is without Spark"
    assert "the run is too short" in reasons.values()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--faults", "fire"], "no fault is called fire", id="unknown fault"),
        pytest.param(["--minutes", "0"], "--minutes", id="no time"),
        pytest.param(["--rate", "0"], "--rate", id="no load"),
        pytest.param(["--folder", "{used}"], "contains an earlier run", id="folder in use"),
    ],
)
def test_bad_input_ends_with_code_2_before_anything_starts(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    words = [word.replace("{used}", str(tmp_path)) for word in arguments]

    found = CliRunner().invoke(command(), words if "--folder" in words else [*words, "--folder", str(tmp_path / "new")])

    assert 2 == found.exit_code
    assert message in found.stderr
    assert "Traceback" not in found.stderr
