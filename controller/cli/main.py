"""The command line: names, help, and what becomes of an error. Entry point: `main`.

Rules:

1. An error is one line on standard error, ``headgate: what, where, what to do``; exit code 1, or 2 for a command that
   was written wrong. A traceback appears only with ``--debug``.
2. Ctrl-C cleans up and exits with 130, SIGTERM with 143, a reader that went away (``| head``) with 141: all quietly.
3. A command's module is imported when the command is used: ``headgate --help`` must not wait for MQTT or Parquet.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from controller.cli.context import InterruptedBySignalError, Invocation
from controller.cli.output import examples
from headgate.errors import HeadgateError

COMMANDS = {
    "up": ("controller.cli.up", "Start one whole node: ZooKeeper, broker, Spark and the daemon."),
    "run": ("controller.cli.run", "Run the daemon against servers that run already."),
    "check-config": ("controller.cli.run", "Check the daemon's settings without starting anything."),
    "topic": ("controller.cli.topic", "Create, list, describe, split, merge and delete topics."),
    "produce": ("controller.cli.produce", "Send newline-delimited JSON to a topic."),
    "consume": ("controller.cli.consume", "Print a topic's records, one JSON object a line."),
    "backlog": ("controller.cli.backlog", "Show what is not acknowledged, how old it is, when it will be over."),
    "subscription": ("controller.cli.subscription", "List, describe and delete subscriptions."),
    "explain": ("controller.cli.explain", "Say why a segment is, or is not, with a consumer."),
    "plan": ("controller.cli.explain", "Show what a split, a merge or a consumer would move."),
}
"""Name → (module, one line of help). The module holds the command under its name, with ``_`` for ``-``."""

_EXIT_FAILED = 1
_USAGE_ERROR = 2
_EXIT_SIGNAL_BASE = 128


class HeadgateGroup(click.Group):
    """The ``headgate`` command: loads commands by need, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order in which a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def main(  # type: ignore[override]  # click's overloads differ in nothing that we take
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        **extra: Any,
    ) -> NoReturn:
        """Run a command line and exit the process."""
        self._main_shell_completion(extra, prog_name or "headgate", complete_var)
        arguments = list(sys.argv[1:] if args is None else args)
        sys.exit(self._exit_code(arguments, prog_name or "headgate"))

    def _exit_code(self, arguments: list[str], prog_name: str) -> int:
        invocation = Invocation()
        try:
            with self.make_context(prog_name, arguments, obj=invocation) as context:
                self.invoke(context)
            sys.stdout.flush()
        except click.exceptions.Exit as finished:
            return finished.exit_code
        except InterruptedBySignalError as signalled:
            return _EXIT_SIGNAL_BASE + signalled.number
        except (KeyboardInterrupt, click.Abort):
            return _EXIT_SIGNAL_BASE + signal.SIGINT
        except BrokenPipeError:
            # What is still buffered has no reader; without this the interpreter complains about it at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
            return _EXIT_SIGNAL_BASE + signal.SIGPIPE
        except Exception as error:  # noqa: BLE001 - ends the process and says so
            return _report(error, debug=invocation.debug)
        return 0


def _report(error: Exception, *, debug: bool) -> int:
    """Print ``error`` as one line and return the exit code."""
    if debug:
        traceback.print_exception(error)
    leaf = _first_leaf(error)
    match leaf:
        case click.exceptions.NoArgsIsHelpError():
            click.echo(leaf.format_message(), err=True)
            return _USAGE_ERROR
        case click.UsageError():
            hint = f"; see: {leaf.ctx.command_path} --help" if leaf.ctx is not None else ""
            text, code = f"{leaf.format_message().rstrip('.')}{hint}", _USAGE_ERROR
        case click.ClickException():
            text, code = leaf.format_message(), leaf.exit_code
        case HeadgateError():
            text, code = str(leaf), _EXIT_FAILED
        case OSError():
            where = f"{leaf.filename}: " if leaf.filename else ""
            text, code = f"{where}{leaf.strerror or leaf}", _EXIT_FAILED
        case _:
            hint = "" if debug else " (headgate --debug … shows where)"
            text, code = f"this is a bug: {type(leaf).__name__}: {leaf}{hint}", _EXIT_FAILED
    click.echo(f"headgate: {' '.join(text.split())}", err=True)
    return code


def _first_leaf(error: BaseException) -> BaseException:
    """Return what a task group's exception is about: a foreseen error if there is one, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first_leaf(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, HeadgateError)), leaves[0])


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from importlib.metadata import version  # noqa: PLC0415

        click.echo(f"headgate {version('headgate')}")
        context.exit()


@click.group(
    cls=HeadgateGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "headgate up",
        "headgate topic create orders --segments 4",
        "headgate produce orders --key-field id events.ndjson",
        "headgate consume orders --subscription billing --type stream --from earliest",
    ),
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Client configuration. [default: $HEADGATE_CONFIG, then headgate-data/client.toml]",
)
@click.option("--debug", is_flag=True, help="Show tracebacks, and log everything to standard error.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it.")
@click.pass_obj
def main(invocation: Invocation, config: Path | None, debug: bool) -> None:
    """Streams that split and merge, in order.

    headgate takes keyed records in through MQTT, keeps them in an object store, and gives segments to consumers. A
    segment that came from a split or a merge is opened only when everything before it has been read.
    """
    invocation.config, invocation.debug = config, debug
