"""What a program imports from ``headgate``."""

import subprocess
import sys

import pytest

import headgate


@pytest.mark.parametrize("name", headgate.__all__)
def test_every_exported_name_is_there(name):
    assert name == getattr(headgate, name).__name__


def test_a_name_that_is_not_exported_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Prodcuer'"):
        _ = headgate.Prodcuer


def test_the_errors_come_without_the_broker_and_without_parquet():
    """The command line shows its help without loading them."""
    code = "import sys, headgate.errors; print(sorted({'aiomqtt', 'pyarrow', 'obstore'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == found.stdout.strip()
