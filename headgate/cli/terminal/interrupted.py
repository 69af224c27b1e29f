"""The end of a command by a signal."""

import signal


class InterruptedBySignalError(Exception):
    """Ctrl-C or SIGTERM ended the command, and it has cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
