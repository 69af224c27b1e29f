"""The process of the command `headgate`, also as `python -m headgate`. What Ctrl-C does while modules are imported.

Until the first line of `run`, Ctrl-C prints a traceback, so nothing is imported before it that takes time.
"""

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_INTERRUPTED = 128 + signal.SIGINT


def run() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # A shell may ignore it for `&`.
        signal.signal(signal.SIGINT, _on_interrupt)
    try:
        from headgate.cli.main import main  # noqa: PLC0415 - takes a tenth of a second, in which Ctrl-C may come

        main(prog_name="headgate")
    except KeyboardInterrupt:  # Between the imports and the command, or after it.
        sys.exit(_INTERRUPTED)


def _on_interrupt(number: int, frame: "FrameType | None") -> None:
    """Raise KeyboardInterrupt; end the process at once while a module is imported, because an import may swallow it."""
    caller = frame
    while caller is not None:
        if caller.f_globals.get("__name__") == "importlib._bootstrap":
            os._exit(_INTERRUPTED)
        caller = caller.f_back
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    run()
