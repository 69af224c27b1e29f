"""Where the measured parts log to: standard error, and warnings only. Standard output is for results."""

from __future__ import annotations

import logging
import sys

import structlog


def log_to_standard_error() -> None:
    """Set this process up so."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
