"""Logs of a client command: one event per line on standard error."""

import logging
import sys

import headgate

REPEATING: dict[str, int] = {
    # Its errors are the reasons of headgate.transport.mqtt, once more at each attempt.
    "headgate.transport.paho": logging.CRITICAL,
    "asyncio": logging.WARNING,
}
"""Minimum level of loggers that repeat what others say. With ``--debug``, INFO for all."""


def start_logs(*, debug: bool) -> None:
    """Log warnings to a terminal, where they show why a command waits, and only errors to a script."""
    level = logging.DEBUG if debug else logging.WARNING if sys.stderr.isatty() else logging.ERROR
    logging.basicConfig(
        stream=sys.stderr,
        level=max(level, logging.INFO),
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    logging.getLogger(headgate.__name__).setLevel(level)
    for name, quiet in REPEATING.items():
        logging.getLogger(name).setLevel(logging.INFO if debug else max(quiet, level))
