"""The process of the command `headgate`, also as `python -m headgate`. What Ctrl-C does while modules are imported."""

import os
import signal
from types import FrameType

from headgate.cli.exit_codes import ExitCode


def run() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # A shell may ignore it for `&`.
        signal.signal(signal.SIGINT, _on_interrupt)
    from headgate.cli.main import main  # noqa: PLC0415 - takes a tenth of a second, in which Ctrl-C may come

    main(prog_name="headgate")


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; end the process at once while a module is imported, because an import may swallow it."""
    caller = frame
    while caller is not None:
        if caller.f_globals.get("__name__") == "importlib._bootstrap":
            os._exit(ExitCode.INTERRUPTED)
        caller = caller.f_back
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    run()
