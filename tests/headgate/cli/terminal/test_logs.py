"""What a client command logs to standard error."""

import io
import logging
import sys

import pytest

from headgate.cli.terminal.running import start_logs
from headgate.log.event_log import get_logger


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "debug", "events"),
    [
        pytest.param(Terminal(), False, ["warned", "failed"], id="a person sees why a command waits"),
        pytest.param(io.StringIO(), False, ["failed"], id="a script gets errors"),
        pytest.param(io.StringIO(), True, ["noticed", "informed", "warned", "failed"], id="--debug prints everything"),
    ],
)
def test_the_level_depends_on_the_reader(
    stream: io.StringIO, debug: bool, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    start_logs(debug=debug)
    log = get_logger("headgate.transport.mqtt")

    log.debug("noticed")
    log.info("informed")
    log.warning("warned", broker="h:1883")
    log.error("failed")

    lines = stream.getvalue().splitlines()
    assert events == [event for line in lines for event in ("noticed", "informed", "warned", "failed") if event in line]
    assert len(events) == len(lines)
    assert not any("warned" in line and "broker='h:1883'" not in line for line in lines)


def test_a_library_that_repeats_reasons_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    start_logs(debug=False)

    logging.getLogger("headgate.transport.paho").error("connection refused")

    assert "" == stream.getvalue()
