"""Sends logs of the measured code to standard error, warnings and above; standard output is for results."""

import logging
import sys

import structlog


def log_to_standard_error() -> None:
    """Configure logging of this process."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
