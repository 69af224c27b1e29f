"""The command line of a child process that runs a module of headgate."""

import sys


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``module`` with this interpreter.

    A package in the working folder, with the name of one of headgate's, is not imported in its place (``-P``).
    """
    return [sys.executable, "-P", "-m", module, *arguments]
