"""What all tests share.

``--engine`` chooses where the tests marked ``engines`` count: see tests/drain/conftest.py.

Hypothesis plays the same examples each time, so that a run says something about the change and not about the day;
``--hypothesis-profile explore`` plays others. It measures no time: how long an example takes says more about who else
uses the machine than about the code. A test that hangs is ended by pytest's own time-out.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

ENGINES = ("local", "standalone", "connect")

settings.register_profile("headgate", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("explore", settings.get_profile("headgate"), derandomize=False)
settings.load_profile("headgate")


def pytest_collection_finish() -> None:
    """Keep the collector of garbage from looking at all that was imported and collected, again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logs_as_they_were(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a command did that ran in this process: it points all logs at a stream that is closed when it ends.

    No logger is kept either, for the one of a module would go on writing there in every test that follows.
    """
    configure = structlog.configure
    monkeypatch.setattr(structlog, "configure", lambda **how: configure(**how | {"cache_logger_on_first_use": False}))
    yield
    structlog.reset_defaults()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", choices=ENGINES, default="local", help="where the tests marked engines count")
