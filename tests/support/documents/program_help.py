"""The help of a program of this repository: `headgate`, ``python -m PACKAGE``, or a file of an example.

It runs in this process, which has imported most of its modules: a process for each would take half a second of a processor.
"""

import contextlib
import functools
import io
import runpy
import sys
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.cli.main import main

ROOT = Path(__file__).parents[3]


@functools.cache
def help_of(script: tuple[str, ...], words: tuple[str, ...] = ()) -> str:
    """Return what a program prints with ``--help`` after ``words``. ``script``: what follows ``python``."""
    if script == ("-m", "headgate"):
        found = CliRunner().invoke(main, [*words, "--help"], prog_name="headgate")
        assert 0 == found.exit_code, found.output
        return found.stdout
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(output), warnings.catch_warnings():
        # runpy warns of modules that were imported before.
        warnings.simplefilter("ignore", RuntimeWarning)
        patched.chdir(ROOT)
        patched.setattr(sys, "argv", [script[-1], *words, "--help"])
        code: object = 0
        try:
            if script[0] == "-m":
                runpy.run_module(script[1], run_name="__main__", alter_sys=True)
            else:
                patched.syspath_prepend((ROOT / script[0]).parent)
                runpy.run_path(str(ROOT / script[0]), run_name="__main__")
        except SystemExit as ended:  # a program without options does its work, and returns
            code = ended.code
        assert code in {None, 0}, code
    return output.getvalue()
