"""`headgate consume`: format of a line, acknowledgements, and exit conditions."""

import json
import subprocess
import sys
from typing import Any

import pytest

from headgate.cli.records.consume import record_line
from headgate.reading.stored_rows import LedgerRecord
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster, InProcessContext, Record, segment, topic


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    """A cluster with a topic of two segments and five records."""
    cluster.topics["orders"] = topic("orders", segment(0, 0, 0x7FFF), segment(1, 0x8000, 0xFFFF))
    cluster.records = [
        Record(b"a", b'{"n": 1}', 0, 0),
        Record(b"b", b'{"n": 2}', 1, 0),
        Record(b"a", b'{"n": 3}', 0, 1),
        Record(b"b", b'{"n": 4}', 1, 1),
        Record(b"a", b'{"n": 5}', 0, 2),
    ]
    return cluster


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"a": 1.10, "b": null}', '{"a": 1.10, "b": null}'),
        (b"12345678901234567890123", "12345678901234567890123"),
        (b'"text"', '"text"'),
        (b"plain text", '"plain text"'),
        (b"", '""'),
        ("ä".encode(), '"ä"'),
        (b'{\n  "a": 1\r\n}', '{"a":1}'),
        (b'{"a":\r1}', '{"a":1}'),
    ],
)
def test_a_value_is_printed_as_json_or_text(value: bytes, shown: str):
    line = record_line(Record(b"k", value, 3, 7, 1234)).decode()

    assert line == f'{{"key":"k","value":{shown},"segment":3,"offset":7,"timestamp":1234}}\n'


def test_binary_values_are_printed_in_base64_with_their_encoding():
    line = json.loads(record_line(Record(b"\xff", b"\x00\xfe")))

    assert (line["key"], line["key_encoding"]) == ("/w==", "base64")
    assert (line["value"], line["value_encoding"]) == ("AP4=", "base64")


def test_headers_are_printed_in_their_order():
    record = LedgerRecord(3, 7, 0, b"k", b"1", (("b", b"text"), ("a", b"\xff"), ("b", b"")))

    assert json.loads(record_line(record))["headers"] == [
        {"name": "b", "value": "text"},
        {"name": "a", "value": "/w==", "value_encoding": "base64"},
        {"name": "b", "value": ""},
    ]


def consumed(invoke: Invoke, *options: str) -> list[dict[str, Any]]:
    """Return what a STREAM consumer of billing prints."""
    result = invoke("consume", "orders", "billing", *options)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_it_ends_after_so_many_records_and_an_existing_subscription_continues(invoke: Invoke, orders: FakeCluster):
    found = consumed(invoke, "--max", "3", "--from", "2026-01-31T18:00:00Z")

    assert ([1, 2, 3], [(0, 1), (1, 0)]) == ([each["value"]["n"] for each in found], sorted(orders.acknowledged))
    assert [True] == [each.if_absent for each in orders.calls]


def test_it_prints_until_it_has_caught_up_and_acknowledges_the_last_record_of_each_segment(
    invoke: Invoke, orders: FakeCluster
):
    options = ("--from", "earliest", "--consumer", "me", "--balance", "load", "--capacity", "2.5")
    lines = consumed(invoke, "--exit-when-caught-up", *options)

    assert [line["value"]["n"] for line in lines] == [1, 2, 3, 4, 5]
    assert orders.acknowledged[-2:] == [(0, 2), (1, 1)]
    assert orders.closed == 1
    assert orders.opened == [
        {
            "topic": "orders",
            "subscription": "billing",
            "type": "STREAM",
            "name": "me",
            "start": "earliest",
            "balance": "load",
            "capacity": 2.5,
        }
    ]


@pytest.mark.parametrize(
    ("type_", "acknowledged"), [("queue", [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]), ("checkpoint", [])]
)
def test_a_queue_acknowledges_every_record_and_a_checkpoint_none(
    type_: str, acknowledged: list[tuple[int, int]], invoke: Invoke, orders: FakeCluster
):
    assert len(consumed(invoke, "--exit-when-caught-up", "--type", type_)) == 5
    assert orders.acknowledged == acknowledged
    assert orders.opened[0]["type"] == type_.upper()


def test_a_record_that_was_not_printed_is_not_acknowledged(
    invoke: Invoke, orders: FakeCluster, context: InProcessContext
):
    context.write_error = OSError(28, "No space left on device")

    result = invoke("consume", "orders", "billing", "--max", "5")

    assert (result.exit_code, result.stderr) == (1, "headgate: No space left on device\n")
    assert orders.acknowledged == []
    assert orders.closed == 1


PROGRAM = """
import sys
from headgate.cli.main import main
from tests.support.fakes.cli_client import FakeCluster, FakeContext, Record, segment, topic

cluster = FakeCluster()
cluster.topics["orders"] = topic("orders", segment(0, 0, 65535))
cluster.records = [Record(b"a", b"x" * 1000, 0, offset) for offset in range(5000)]
try:
    main(["consume", "orders", "billing", "--exit-when-caught-up"], prog_name="headgate", obj=FakeContext(cluster))
finally:
    print(cluster.closed, max(offset for _, offset in cluster.acknowledged), file=sys.stderr)
"""


def test_a_closed_output_pipe_ends_the_command_without_a_message(pytestconfig: pytest.Config):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=pytestconfig.rootpath
    ) as process:
        process.stdout.read(700_000)
        process.stdout.close()
        closed, last = map(int, process.stderr.read().split())

    assert process.returncode == 141
    assert closed == 1
    # Acknowledged records are in the pipe; the pipe and one batch may hold more than was read.
    assert 0 < last < 5000 - 1


def test_resumed_records_of_a_batch_are_acknowledged_beside_others_of_their_segment(
    invoke: Invoke, cluster: FakeCluster
) -> None:
    cluster.topics["orders"] = topic("orders", segment(0, 0, 0xFFFF))
    cluster.records = [Record(b"bad", b"1", 0, 8, parked_number=2), Record(b"good", b"2", 0, 5)]

    consumed(invoke, "--max", "2")

    assert cluster.acknowledged == [(0, 8), (0, 5)]
