"""`headgate produce`: sent records, counts, errors that stop it, and resuming."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.records.sending import REPORTED
from headgate.errors import DeliveryFailedError, DeliveryUnknownError, FencedError, RequestRejectedError
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster, FakeProducer, InProcessContext

GOOD = b'{"id": "a", "n": 1}\n{"id": "b", "n": 2}\n{"id": "a", "n": 3}\n'


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A file of three valid lines."""
    path = tmp_path / "events.ndjson"
    path.write_bytes(GOOD)
    return path


def test_invalid_lines_can_be_skipped_counted_and_reported(invoke: Invoke, orders: FakeCluster, tmp_path: Path):
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"id": 1}\n' + b"hello\n" * 8 + b'{"id": 3}\n')

    result = invoke("produce", "orders", "--key-field", "id", "--skip-bad-lines", str(path))

    assert (0, [b"1", b"3"]) == (result.exit_code, [key for _, key, _ in orders.sent])
    assert result.stderr.count("headgate: skipped") == REPORTED
    assert result.stderr.endswith("accepted 2, stored 2, failed 0, skipped 8 invalid lines\n")


def test_failed_records_are_counted_and_named_and_the_command_fails(invoke: Invoke, orders: FakeCluster, events: Path):
    orders.failures = {
        b'{"id": "a", "n": 1}': DeliveryFailedError("the deadline passed"),
        b'{"id": "b", "n": 2}': DeliveryUnknownError("no answer"),
    }

    result = invoke("produce", "orders", "--key-field", "id", str(events))

    assert result.exit_code == 1
    assert f"{events}:1: the deadline passed" in result.stderr
    assert f"{events}:2: no answer" in result.stderr
    assert result.stderr.endswith("accepted 3, stored 1, failed 2 (1 may have been stored)\n")


def test_a_fenced_producer_stops(invoke: Invoke, orders: FakeCluster, events: Path):
    orders.failures = {b'{"id": "a", "n": 1}': FencedError("fenced", "another process has this name")}

    result = invoke("produce", "orders", "--key-field", "id", str(events))

    assert result.exit_code == 1
    ending = f"failed 1 (1 may have been stored)\nheadgate: stopped at {events}:1: another process has this name\n"
    assert result.stderr.endswith(ending)


def test_a_file_that_cannot_be_read_stops_after_everything_before_it(
    invoke: Invoke, orders: FakeCluster, events: Path, tmp_path: Path
):
    result = invoke("produce", "orders", "--key-field", "id", str(events), str(tmp_path))

    assert (1, 3, 1) == (result.exit_code, len(orders.sent), orders.flushes)
    assert result.stderr.endswith(f"headgate: {tmp_path}: cannot be read: Is a directory\n")


def test_a_record_rejected_by_the_producer_stops_after_everything_before_it(
    invoke: Invoke, orders: FakeCluster, events: Path, monkeypatch: pytest.MonkeyPatch
):
    send = FakeProducer.send

    async def refuse(self: FakeProducer, name: str, key: bytes, value: bytes, **options: Any) -> Any:
        if key == b"b":
            raise RequestRejectedError("invalid", "too large")
        return await send(self, name, key, value, **options)

    monkeypatch.setattr(FakeProducer, "send", refuse)

    result = invoke("produce", "orders", "--key-field", "id", str(events))

    assert (1, 1, 1) == (result.exit_code, len(orders.sent), orders.flushes)
    assert result.stderr.endswith(f"accepted 1, stored 1, failed 1\nheadgate: stopped at {events}:2: too large\n")


def test_ctrl_c_stores_accepted_records_before_the_exit(
    invoke: Invoke, orders: FakeCluster, context: InProcessContext, monkeypatch: pytest.MonkeyPatch
):
    send = FakeProducer.send

    async def interrupt(self: FakeProducer, *record: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return await send(self, *record, **options)

    monkeypatch.setattr(FakeProducer, "send", interrupt)
    context.input_file, writer = os.pipe()
    os.write(writer, b'{"id": 1}\n')
    try:
        result = invoke("produce", "orders", "--key-field", "id")
    finally:
        os.close(context.input_file)
        os.close(writer)

    assert (130, 1) == (result.exit_code, orders.flushes)
    assert result.stderr == "accepted 1, stored 1, failed 0\n"


def test_ctrl_c_while_the_most_records_are_in_flight_counts_each_that_was_accepted(
    invoke: Invoke, orders: FakeCluster, events: Path, monkeypatch: pytest.MonkeyPatch
):
    outcomes: list[asyncio.Future[None]] = []

    async def send(*_: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        outcomes.append(loop.create_future())
        if len(outcomes) == 1:
            loop.call_later(0.1, os.kill, os.getpid(), signal.SIGINT)  # It waits for the outcome by then.
        return outcomes[-1]

    async def close(_: FakeProducer, timeout_seconds: float) -> None:
        [each.set_exception(DeliveryFailedError("it was closed")) for each in outcomes]

    monkeypatch.setattr(FakeProducer, "send", send)
    monkeypatch.setattr(FakeProducer, "close", close)
    monkeypatch.setattr("headgate.cli.records.sending.MAX_IN_FLIGHT", 1)
    result = invoke("produce", "orders", "--key-field", "id", str(events))

    assert result.stderr.endswith("accepted 1, stored 0, failed 1\n")


def test_ctrl_c_after_the_last_line_waits_for_outcomes_too_and_counts_what_has_none(
    invoke: Invoke, orders: FakeCluster, events: Path, monkeypatch: pytest.MonkeyPatch
):
    outcomes: list[asyncio.Future[None]] = []

    async def send(*_: Any, **options: Any) -> Any:
        outcomes.append(asyncio.get_running_loop().create_future())
        return outcomes[-1]

    async def flush(_: FakeProducer) -> None:
        outcomes[0].set_result(None)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    async def close(_: FakeProducer, timeout_seconds: float) -> None:
        assert timeout_seconds == 5
        for outcome, error in zip(outcomes[1:], (DeliveryUnknownError, DeliveryFailedError), strict=True):
            outcome.set_exception(error("the producer was closed"))

    for method in (send, flush, close):
        monkeypatch.setattr(FakeProducer, method.__name__, method)

    result = invoke("produce", "orders", "--key-field", "id", str(events))

    assert result.exit_code == 130
    assert result.stderr.endswith("accepted 3, stored 1, failed 2 (1 may have been stored)\n")


# Resuming


def test_a_second_run_starts_after_the_last_stored_record(invoke: Invoke, orders: FakeCluster, events: Path):
    produce = partial(invoke, "produce", "orders", "--key-field", "id", "--name", "import", str(events))
    produce()
    orders.source_position = orders.positions[1]
    orders.sent.clear()
    with events.open("ab") as file:
        file.write(b'{"id": "c", "n": 4}')

    result = produce()

    assert [value for _, _, value in orders.sent] == [b'{"id": "a", "n": 3}', b'{"id": "c", "n": 4}']
    assert "continuing after 2 lines already stored" in result.stderr
    assert result.stderr.endswith("accepted 2, stored 2, failed 0\n")
    orders.source_position = orders.positions[-1]
    orders.sent.clear()
    with events.open("ab") as file:
        file.write(b'\n{"id": "c", "n": 5}')
    produce()
    assert [value for _, _, value in orders.sent] == [b'{"id": "c", "n": 5}'], "the last line has got its end"


@pytest.mark.parametrize(
    "content",
    [b"", b'{"id": "z", "n": 1}\n{"id": "b", "n": 2}\n', GOOD[:30], GOOD[:59], GOOD[:59] + b" \n"],
    ids=["empty", "another first line", "cut", "cut before the line end", "a longer last line"],
)
def test_another_file_under_the_same_name_is_rejected(
    invoke: Invoke, orders: FakeCluster, events: Path, content: bytes
):
    """Any byte before the position counts, not only its last line."""
    produce = partial(invoke, "produce", "orders", "--key-field", "id", "--name", "import", str(events))
    if content.startswith(GOOD[:59]) and content != GOOD[:59]:
        events.write_bytes(GOOD[:59])
    produce()
    orders.source_position = orders.positions[-1]
    orders.sent.clear()
    events.write_bytes(content)

    result = produce()

    assert result.exit_code == 1
    assert "does not begin with what producer 'import' has stored in topic 'orders'" in result.stderr
    assert orders.sent == []


def test_a_position_of_another_program_is_rejected(invoke: Invoke, orders: FakeCluster, events: Path):
    orders.source_position = b"row 7"

    result = invoke("produce", "orders", "--key-field", "id", "--name", "import", str(events))

    assert result.exit_code == 1
    assert orders.sent == []


def test_a_named_producer_stops_at_its_first_failure(invoke: Invoke, orders: FakeCluster, tmp_path: Path):
    path = tmp_path / "many"
    path.write_bytes(b"".join(b'{"id": %d}\n' % number for number in range(100_000)))
    orders.failures = {b'{"id": 5}': DeliveryFailedError("the deadline passed")}

    result = invoke("produce", "orders", "--key-field", "id", "--name", "import", str(path))

    assert result.exit_code == 1
    assert len(orders.sent) < 100_000
    assert f"stopped at {path}:6: the deadline passed" in result.stderr


# Standard input

PROGRAM = """
import sys
from headgate.cli.main import main
from tests.support.fakes.cli_client import FakeCluster, FakeContext, segment, topic

cluster = FakeCluster()
cluster.topics["orders"] = topic("orders", segment(0, 0, 65535))
try:
    main(["produce", "orders", "--key-field", "id", *sys.argv[1:]], prog_name="headgate", obj=FakeContext(cluster))
finally:
    print([key.decode() for _, key, _ in cluster.sent])
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give exactly one of --key-field FIELD, --key TEXT and --key-separator TEXT"),
        (("--key", "k", "--key-separator", ":"), "give exactly one of"),
        (("--key-separator", ""), "--key and --key-separator must not be empty"),
        (("--key", ""), "--key and --key-separator must not be empty"),
        (("--key-field", "id", "--raw"), "--raw requires --key TEXT"),
        (("--key", "k", "--raw", "--timestamp-field", "at"), "--timestamp-field requires lines of JSON or CSV"),
        (("--key-separator", ":", "--timestamp-field", "at"), "--timestamp-field requires lines of JSON or CSV"),
        (("--key-field", "id", "--header", "kind"), "'kind' has no value: give NAME=VALUE"),
        (("--key-field", "id", "--header", "=b"), "a record has a header without a name"),
        (("--key-field", "id", "--header", "headgate-reason=b"), "a record has the header 'headgate-reason'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    options: tuple[str, ...], message: str, invoke: Invoke, orders: FakeCluster, events: Path
):
    result = invoke("produce", "orders", *options, str(events))

    assert (2, []) == (result.exit_code, orders.sent)
    assert message in result.stderr


def test_every_record_gets_the_given_headers(invoke: Invoke, orders: FakeCluster, events: Path):
    options = ("--header", "kind=a=b", "--header", "kind=")
    result = invoke("produce", "orders", "--key-field", "id", *options, str(events))

    assert result.exit_code == 0, result.stderr
    assert orders.headers == [(("kind", b"a=b"), ("kind", b""))] * 3
