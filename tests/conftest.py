"""Settings of all tests.

``--engine`` chooses where the tests marked ``engines`` count: see tests/drain/conftest.py. ``--tls`` chooses which
system tests use TLS, users and passwords: see tests/system/conftest.py.

Hypothesis plays the same examples in each run, so that a result depends on the change only. `make
test` plays 25 per test and `make nightly` 60 (``--hypothesis-profile thorough``);
``--hypothesis-profile explore`` plays others. Hypothesis measures no time, because the duration of
an example depends on other load. pytest's time-out ends a test that hangs.

Every JVM of the tests compiles quickly instead of well (`SHORT_LIVED_JVM`), because it lives for seconds. A Spark
process then costs half the processor time until it is ready, and half of that with an archive of its classes
(tests/support/servers/class_archive.py), which `make test` writes.
"""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.servers.class_archive import use_archive
from tests.support.servers.tls_choice import CHOICES, description
from tests.support.virtual_loop import VirtualLoop

SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1"
os.environ.setdefault("JDK_JAVA_OPTIONS", SHORT_LIVED_JVM)
use_archive()
# Keep jsonschema from compiling 38 grammars of IRIs, which takes more than a second: no schema of a test has one.
sys.modules["rfc3987_syntax"] = type(sys)("rfc3987_syntax")

# Imports and collection make objects that stay.
gc.disable()
FULL_COLLECTION = 100
"""Garbage collections of the middle generation before a full one, which takes a third of a second: ten times more."""

ENGINES = ("local", "standalone", "connect")

settings.register_profile(
    "thorough", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("headgate", settings.get_profile("thorough"), max_examples=25)
settings.register_profile("explore", settings.get_profile("thorough"), derandomize=False)
settings.load_profile("headgate")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_time: waits for sockets, threads or processes, also without a server")
    config.addinivalue_line(
        "markers", "virtual_time(start=0): the clock's first time; of a module with the mark above, what does not wait"
    )


class UnitLoop(VirtualLoop):
    """Virtual time for a test. It may leave a generator for asyncio to close, as a program may."""

    _asyncgen_finalizer_hook = asyncio.SelectorEventLoop._asyncgen_finalizer_hook


REAL_TIME = frozenset({"contract", "real_time", "security", "spark", "system"})
"""Marks of tests whose loop waits for what is outside of it."""
RUNNING: dict[str, pytest.Item] = {}  # A test has the marks of its parameters once it runs.


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose clock jumps to the next timer, unless the test waits for what is outside of the loop."""
    marks = {mark.name: mark.kwargs for mark in RUNNING["test"].iter_markers()}
    if "virtual_time" in marks or REAL_TIME.isdisjoint(marks):
        return UnitLoop(**marks.get("virtual_time", {}))
    return asyncio.new_event_loop()


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"of the test": new_loop}


def pytest_collection_finish() -> None:
    """Exempt everything imported and collected from garbage collection, and collect the rest more rarely."""
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION)
    gc.enable()


configure_structlog = structlog.configure
# A cached logger would write to the stream of one command in all later tests.
structlog.configure = lambda **how: configure_structlog(**how | {"cache_logger_on_first_use": False})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Restore the logs after a command that ran in this process and redirected them to a stream that is closed later.

    A hook, because a fixture and what sets it up take as long as half of the tests do.
    """
    RUNNING["test"] = item
    root, library = logging.getLogger(), logging.getLogger("headgate")
    handlers, levels = list(root.handlers), (root.level, library.level)
    try:
        return (yield)
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        library.setLevel(levels[1])


def pytest_report_header(config: pytest.Config) -> str:
    return description(config.getoption("tls"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", action="store_true", help="write the pictures of the status page to docs/images")
    parser.addoption("--tls", choices=CHOICES, default="half", help="which files of system tests run with TLS")
    parser.addoption("--debian", metavar="FOLDER", help="test the Debian packages in this folder instead of a new one")
    parser.addoption("--engine", choices=ENGINES, default="local", help="where the tests marked engines count")
