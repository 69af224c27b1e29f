"""Commands that pass their arguments to a program of its own."""

import sys
from types import ModuleType

import pytest

from controller.cli.programs import PROGRAMS
from tests.headgate.cli.conftest import Invoke


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Replace the program of `headgate drain job`; return the arguments that it gets. It ends with exit code 1."""
    calls: list[tuple[str, ...]] = []
    program = ModuleType("program")
    program.main = lambda arguments: calls.append(arguments) or 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PROGRAMS["job"][0], program)
    return calls


def test_the_program_gets_all_arguments_and_its_exit_code_is_that_of_the_command(
    invoke: Invoke, received: list[tuple[str, ...]]
) -> None:
    arguments = ("--ledger", "s3://b/p", "--conf", "a=b", "--conf", "c=d", "--config", "x", "--help", "--", "-x")

    assert 1 == invoke("drain", "job", *arguments).exit_code
    assert [tuple(each for each in arguments if each != "--")] == received


@pytest.mark.parametrize("command", ["job", "serve"])
@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_without_spark_one_line_says_what_to_install(package: str, command: str, invoke: Invoke, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "drain"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)

    result = invoke("drain", command, "--ledger", "file:///ledger")

    wanted = f"headgate: this program needs Spark, but {package} is not installed: "
    assert (1, True) == (result.exit_code, result.stderr.startswith(wanted + "python3 -m pip install 'pandas"))


def test_another_missing_module_is_not_taken_for_spark(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PROGRAMS["job"][0], None)

    result = invoke("drain", "job")

    assert 1 == result.exit_code
    assert result.stderr.startswith("headgate: internal error: ModuleNotFoundError: ")
