"""What a program can import from ``headgate``, at run time and in the eyes of a type checker."""

import subprocess
import sys

import pytest

import headgate


def test_every_exported_name_exists():
    """A number has a name of its own in the API, and is an integer."""
    found = {name: getattr(headgate, name) for name in headgate.__all__}

    assert {} == {name: each for name, each in found.items() if name != each.__name__ and each is not int}


def test_a_name_that_is_not_exported_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Prodcuer'"):
        _ = headgate.Prodcuer


def test_the_type_checker_accepts_every_export_and_nothing_else(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(f"from headgate import {', '.join(headgate.__all__)}\nfrom headgate import Nonsense\n")
    command = (
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=skip",
        f"--cache-dir={tmp_path / 'cache'}",
        "--no-site-packages",
    )

    found = subprocess.run(
        [sys.executable, *command, headgate.__file__, str(program)], capture_output=True, text=True, check=False
    )

    errors = [line for line in found.stdout.splitlines() if "error:" in line and "program.py" in line]
    assert 1 == len(errors), found.stdout + found.stderr
    assert 'program.py:2: error: Module "headgate" has no attribute "Nonsense"' in errors[0]


def test_the_package_and_its_errors_load_neither_the_broker_client_nor_parquet():
    """The command line prints its help without them."""
    code = (
        "import sys, headgate, headgate.errors; from headgate import SubscriptionType, SegmentId; "
        "print(sorted({'aiomqtt', 'asyncio', 'arro3', 'obstore'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == found.stdout.strip()
