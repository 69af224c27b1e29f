"""What a program that configures `logging` gets from the library."""

import logging

import pytest

from headgate.log.event_log import LogEvent, get_logger


def test_a_handler_gets_text_fields_and_the_place(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("headgate.x").bind(broker="h:1").warning("broker.unreachable", reason="no route")

    (record,) = caplog.records
    assert ("headgate.x", logging.WARNING) == (record.name, record.levelno)
    assert "broker.unreachable broker='h:1' reason='no route'" == record.getMessage()
    assert LogEvent("broker.unreachable", {"broker": "h:1", "reason": "no route"}) == record.msg
    assert __file__ == record.pathname


def test_binding_does_not_change_the_logger_that_was_bound(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("headgate.x")
    log.bind(shard=1)
    log.error("gone")

    assert ["gone"] == [record.getMessage() for record in caplog.records]


def test_a_level_that_is_disabled_formats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate")
    log = get_logger("headgate.x")
    log.debug("quiet")
    log.info("loud")

    assert ["loud"] == [record.getMessage() for record in caplog.records]
