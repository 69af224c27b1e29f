"""The exit codes of the command line, its end by a signal, and faults of the machine that do not look like it."""

import signal
from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended. The site's table of exit codes is made from the texts here."""

    SUCCEEDED = 0
    """The command succeeded."""
    FAILED = 1
    """It failed. One line on standard error says what is wrong, where, and what to do."""
    WRONG_USAGE = 2
    """It was used in a wrong way: an unknown command or option, or a missing argument."""
    OUTCOME_UNKNOWN = 3
    """No leader answered it in time, so it may or may not have been executed."""
    INTERRUPTED = 128 + signal.SIGINT
    """Ctrl-C ended it."""
    OUTPUT_CLOSED = 128 + signal.SIGPIPE
    """The reader of its output ended first, as in ``| head``."""
    TERMINATED = 128 + signal.SIGTERM
    """SIGTERM ended it."""


class InterruptedBySignalError(Exception):
    """Ctrl-C or SIGTERM ended the command, and it has cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def machine_fault(error: BaseException) -> str | None:
    """Return what is wrong with the machine, if ``error`` says so."""
    match error:
        case MemoryError():
            return "out of memory: this process reached its limit (ulimit -v, MemoryMax) or that of the machine"
        case RuntimeError() if "can't start new thread" in str(error):
            return "no new thread: this process reached its limit of memory (ulimit -v) or of threads (TasksMax)"
        case OverflowError() if "timestamp too large" in str(error):
            return "the clock of this machine is beyond the year 2262: set it"
        case _:
            return None
