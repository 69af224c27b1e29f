"""Commands that are programs of their own: `headgate` imports them when they run, and passes their arguments on."""

import sys
from functools import partial
from importlib import import_module

import click

from drain.spark_extra import without_spark


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
        missing = without_spark(error)
        if missing is None:
            raise
        raise missing from error
    code = program.main(arguments)
    sys.stdout.flush()
    raise click.exceptions.Exit(code)
