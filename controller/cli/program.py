"""Commands that are programs of their own: `headgate` imports them when they run, and passes their arguments on."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module

import click

from headgate.errors import HeadgateError

SPARK = ("pyspark", "pyarrow")
"""Packages of the extra ``spark``."""


def program_command(name: str, module: str, text: str) -> click.Command:
    """Return the command that calls ``main`` of ``module``; ``text`` is its line in the list of commands."""
    return click.Command(
        name,
        callback=partial(_run, module),
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]")],
        help=text,
        short_help=text,
        add_help_option=False,  # the program has its own
        context_settings={"ignore_unknown_options": True},
    )


def _run(module: str, arguments: tuple[str, ...]) -> None:
    try:
        program = import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in SPARK:
            raise
        raise HeadgateError(
            f"this command needs Spark, but {package} is not installed: python3 -m pip install 'headgate-daemon[spark]'"
        ) from error
    code = program.main(arguments)
    sys.stdout.flush()
    raise click.exceptions.Exit(code)
