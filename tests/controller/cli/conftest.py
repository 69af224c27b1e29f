"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from controller.cli import context
from controller.cli.main import main
from tests.support.cli_client import FakeAdmin, FakeCluster, FakeConsumer, FakeProducer

Invoke = Callable[..., Result]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A cluster of plain lists behind every client command."""
    fake = FakeCluster()

    def open_consumer(_: object, **options: Any) -> FakeConsumer:
        fake.opened.append(options)
        return FakeConsumer(fake)

    monkeypatch.setattr(context, "client_config", lambda: None)
    monkeypatch.setattr(context, "open_admin", lambda _: FakeAdmin(fake))
    monkeypatch.setattr(context, "open_producer", lambda _, *, name: FakeProducer(fake))
    monkeypatch.setattr(context, "open_consumer", open_consumer)
    return fake


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run one command line in this process; the result has stdout, stderr and the exit code."""
    monkeypatch.setattr(context, "start_logs", lambda *_: None)

    def run(*arguments: str, stdin: bytes | str | None = None) -> Result:
        return CliRunner().invoke(main, list(arguments), input=stdin, prog_name="headgate")

    return run
