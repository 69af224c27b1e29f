"""The command line: command names, help, errors and exit codes. Entry point: `main`.

Rules:

1. An error is one line on standard error: ``headgate: what is wrong, where, what to do``. The exit code is 1, or 2 for
   wrong usage, or 3 if it is unknown whether a command was executed. A traceback appears only with ``--debug``. With
   ``--json`` the line is ``{"error": …, "exit_code": …}``.
2. Ctrl-C cleans up and exits with 130, SIGTERM with 143, a closed output pipe (``| head``) with 141, without a message.
3. A command's module is imported when the command runs: ``headgate --help`` must not import MQTT or Parquet.
"""

import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from headgate.cli.commands import COMMANDS, DAEMON_COMMANDS, daemon_is_installed, installation_hint
from headgate.cli.context import CommandContext
from headgate.cli.exit_codes import ExitCode, InterruptedBySignalError, machine_fault
from headgate.cli.terminal.option_types import FilePath
from headgate.cli.terminal.output import examples
from headgate.errors import CommandUnknownError, HeadgateError
from headgate.process.resources import keep_freed_memory
from headgate.settings.command_parser import asks_for_json, error_line

_EXIT_SIGNAL_BASE = 128


class HeadgateGroup(click.Group):
    """The ``headgate`` command: loads commands on demand, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [*COMMANDS, *DAEMON_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name) or DAEMON_COMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            module = importlib.import_module(entry[0])
        except ModuleNotFoundError as error:
            if cmd_name in COMMANDS:
                raise
            missing = f"{error.name} is not installed; " if daemon_is_installed() else ""
            raise HeadgateError(f"{missing}{installation_hint(cmd_name)}") from error
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for one that does not exist, name near ones of all."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as unknown:
            raise click.NoSuchCommand(unknown.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])
        missing = "" if daemon_is_installed() else " (install the distribution headgate-daemon)"
        with formatter.section(f"Commands of a daemon{missing}"):
            formatter.write_dl([(name, text) for name, (_, text) in DAEMON_COMMANDS.items()])

    def main(  # type: ignore[override]  # click's overloads differ only in parameters that are not used
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        **extra: Any,
    ) -> NoReturn:
        self._main_shell_completion(extra, prog_name or "headgate", complete_var)
        keep_freed_memory()
        arguments = list(sys.argv[1:] if args is None else args)
        sys.exit(self._exit_code(arguments, prog_name or "headgate", extra.get("obj") or CommandContext()))

    def _exit_code(self, arguments: list[str], prog_name: str, command_context: CommandContext) -> int:
        # The number of a closed one would be that of the next file or connection.
        if sys.stdin is None:
            os.open(os.devnull, os.O_RDONLY)
        sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115 - as long as the process
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # A drawing in a terminal without UTF-8, as in errors.
        if sys.stdout is None:
            closed = HeadgateError("standard output is closed: name a file or /dev/null for it")
            return _report(closed, debug=False, as_json=asks_for_json(arguments))
        try:
            with self.make_context(prog_name, arguments, obj=command_context) as context:
                self.invoke(context)
            sys.stdout.flush()
        except click.exceptions.Exit as finished:
            return finished.exit_code
        except InterruptedBySignalError as signalled:
            return _EXIT_SIGNAL_BASE + signalled.number
        except (KeyboardInterrupt, click.Abort):
            return ExitCode.INTERRUPTED
        except BrokenPipeError:
            # Otherwise the interpreter reports, at its end, that the rest of its buffer has no reader.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
            return ExitCode.OUTPUT_CLOSED
        except Exception as error:  # noqa: BLE001 - ends the process with a message
            return _report(error, debug=command_context.debug, as_json=asks_for_json(arguments))
        return ExitCode.SUCCEEDED


def _report(error: Exception, *, debug: bool, as_json: bool) -> int:
    """Print ``error`` as one line, of JSON if the command was to print JSON, and return the exit code."""
    if debug:
        traceback.print_exception(error)
    leaf = _first_leaf(error)
    code: int = ExitCode.FAILED
    match leaf:
        case click.exceptions.NoArgsIsHelpError():
            click.echo(leaf.format_message(), err=True)
            return ExitCode.WRONG_USAGE
        case click.UsageError():
            message = leaf.format_message().rstrip(".")
            separator = " See" if message.endswith("?") else "; see"
            hint = f"{separator}: {leaf.ctx.command_path} --help" if leaf.ctx is not None else ""
            text, code = f"{message}{hint}", ExitCode.WRONG_USAGE
        case click.ClickException():
            text, code = leaf.format_message(), leaf.exit_code
        case CommandUnknownError():
            text, code = str(leaf), ExitCode.OUTCOME_UNKNOWN
        case HeadgateError():
            text = str(leaf)
        case OSError():
            where = f"{leaf.filename or 'standard output'}: " if leaf.filename or _is_of_output(leaf) else ""
            text = f"{where}{leaf.strerror or leaf}"
        case _ if (fault := machine_fault(leaf)) is not None:
            text = fault
        case _:
            hint = "" if debug else " (run headgate --debug … for a traceback)"
            text = f"internal error: {type(leaf).__name__}: {leaf}{hint}"
    click.echo(error_line(text, code, as_json=as_json), err=True)
    return code


def _is_of_output(error: OSError) -> bool:
    """Return whether ``error``, which names no file, was raised by what prints texts and tables."""
    return Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent.name in {"click", "rich"}


def _first_leaf(error: BaseException) -> BaseException:
    """Return the error inside an exception group: a HeadgateError if there is one, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first_leaf(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, HeadgateError)), leaves[0])


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from importlib.metadata import version  # noqa: PLC0415

        click.echo(f"headgate {version('headgate-client')}")
        context.exit()


@click.group(
    cls=HeadgateGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "headgate topic create orders --segments 4",
        "headgate produce orders --key-field id events.ndjson",
        "headgate consume orders billing --type stream --from earliest",
    ),
)
@click.option(
    "--config",
    type=FilePath(),
    metavar="FILE",
    help="Client configuration. [default: $HEADGATE_CONFIG, then headgate-data/client.toml]",
)
@click.option("--debug", is_flag=True, help="Print tracebacks and all log messages to standard error.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.pass_obj
def main(context: CommandContext, config: Path | None, debug: bool) -> None:
    """Coordinate streams whose segments split and merge, without breaking the order of keys.

    headgate ingests keyed records through MQTT, stores them in an object store, and assigns segments to consumers. A
    segment that results from a split or a merge is opened only when its parents have been fully consumed.
    """
    context.config, context.debug = config, debug
