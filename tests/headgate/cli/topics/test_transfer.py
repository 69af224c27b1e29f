"""`headgate topic copy`: what is sent, where it continues, and refusals."""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.client.topic_source import TopicSource
from headgate.errors import DeliveryFailedError
from headgate.model.headers import Headers
from tests.headgate.cli.conftest import Invoke
from tests.headgate.cli.records.test_producer import info
from tests.headgate.cli.records.test_read import never
from tests.support.fakes.cli_client import FakeCluster, InProcessContext, segment, topic
from tests.support.samples.positioned_ledger import LedgerWithPositions

LEDGER_ID = "0123456789abcdef" * 2
VALUES = [b"0.0", b"1.0", b"0.1", b"3.0"]
HEADERS: list[Headers] = [(), (), (("n", b"\xff1"),), ()]


@pytest.fixture(autouse=True)
def stored(cluster: FakeCluster) -> None:
    """A source with four records, one of them in a child, and an empty target."""

    async def write() -> LedgerWithPositions:
        known = LedgerWithPositions()
        for at_ms, steps in ((10, (0, 1)), (20, (0,)), (30, ("split",)), (40, (3,))):
            await known.write(at_ms, *steps)
        return known

    known = asyncio.run(write())
    cluster.source = TopicSource(known.description(), known.ledger, LEDGER_ID, newest_chunk=3, describe=never)
    cluster.topics = {name: topic(name, segment(0, 0, 65_535)) for name in ("orders", "copies")}


def values(cluster: FakeCluster) -> list[bytes]:
    assert {name for name, _, _ in cluster.sent} <= {"copies"}
    return [value for _, _, value in cluster.sent]


def test_a_copy_has_keys_values_and_timestamps_in_order(invoke: Invoke, cluster: FakeCluster) -> None:
    result = invoke("topic", "copy", "orders", "copies")

    assert result.exit_code == 0, result.stderr
    assert cluster.sent == [
        ("copies", key, value) for key, value in zip((b"k0", b"k0", b"k1", b"k0"), VALUES, strict=True)
    ]
    assert cluster.timestamps == [0] * 4
    assert cluster.headers == HEADERS
    assert cluster.names == ["copy-orders-copies"]
    assert result.stderr == "accepted 4, stored 4, failed 0\n"


@pytest.mark.parametrize("stored_records", [1, 2, 3, 4])
def test_an_interrupted_copy_continues(stored_records: int, invoke: Invoke, cluster: FakeCluster) -> None:
    """Its target has records, and its producer the position of the last of them."""
    invoke("topic", "copy", "orders", "copies")
    cluster.source_position = cluster.positions[stored_records - 1]
    cluster.producers = [info("copy-orders-copies", shard=2, positions={"copies": cluster.source_position or b""})]
    cluster.topics["copies"] = topic("copies", segment(0, 0, 65_535, next_offset=stored_records))
    cluster.sent.clear()

    result = invoke("topic", "copy", "orders", "copies")

    assert result.exit_code == 0, result.stderr
    assert values(cluster) == VALUES[stored_records:]
    assert f"continuing after the last copy; {4 - stored_records} record" in result.stderr


def test_a_record_that_is_not_stored_ends_the_copy(invoke: Invoke, cluster: FakeCluster) -> None:
    cluster.failures[b"1.0"] = DeliveryFailedError("no leader")

    result = invoke("topic", "copy", "orders", "copies", "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout)["failed"] == 1
    assert "stopped at orders, segment 1, offset 0: no leader" in result.stderr


def test_other_records_are_mixed_in_only_with_consent(invoke: Invoke, cluster: FakeCluster) -> None:
    cluster.topics["copies"] = topic("copies", segment(0, 0, 65_535, next_offset=7))
    of_an_earlier_topic = replace(cluster.topics["copies"], topic_id=9)
    written = info("copy-orders-copies", shard=2, positions={"copies": b""})
    for topic_of_the_name, producers in ((cluster.topics["copies"], []), (of_an_earlier_topic, [written])):
        cluster.topics["copies"], cluster.producers = topic_of_the_name, producers
        refused = invoke("topic", "copy", "orders", "copies")

        assert (refused.exit_code, cluster.sent, cluster.names) == (1, [], [])
        assert "topic copies has 7 records: add --append to add others, or choose an empty topic" in refused.stderr
    assert invoke("topic", "copy", "orders", "copies", "--append", "--name", "nightly").exit_code == 0
    assert (values(cluster), cluster.names) == (VALUES, ["nightly"])


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("orders", "orders"), 2, "SOURCE and TARGET are the same topic"),
        (("orders", "nowhere"), 1, "topic 'nowhere' does not exist"),
        (("orders",), 2, "Missing argument 'TARGET'"),
    ],
)
def test_a_wrong_copy_is_refused(words: tuple[str, ...], code: int, reason: str, invoke: Invoke, cluster: FakeCluster):
    result = invoke("topic", "copy", *words)

    assert (result.exit_code, cluster.sent) == (code, [])
    assert reason in result.stderr


def test_a_producer_that_has_read_something_else_is_refused(invoke: Invoke, cluster: FakeCluster) -> None:
    cluster.source_position = b"line 5"
    result = invoke("topic", "copy", "orders", "copies", "--name", "import-1")

    assert result.exit_code == 1
    assert "producer import-1 cannot continue: it has read another source before" in result.stderr


def written_config(file: Path, name: str, port: int = 1883) -> Path:
    lines = (f'cluster = "{name}"', 'broker_host = "::1"', f"broker_port = {port}", 'ledger_url = "file:///ledger"')
    file.write_text("\n".join(lines))
    return file


def test_a_copy_goes_to_a_topic_of_another_cluster(
    invoke: Invoke, cluster: FakeCluster, context: InProcessContext, tmp_path: Path
) -> None:
    """Its topic may have the same name. The producer and the records in the way are those of that cluster."""
    here, file = written_config(tmp_path / "here.toml", "here"), written_config(tmp_path / "to.toml", "there")
    there = context.others[file] = FakeCluster(topics={"orders": topic("orders", segment(0, 0, 65_535))})
    words = ("topic", "copy", "orders", "orders", "--config", str(here), "--to-config", str(file))
    result = invoke(*words)

    assert result.exit_code == 0, result.stderr
    assert [value for _, _, value in there.sent] == VALUES
    assert (there.names, cluster.names, cluster.sent) == (["copy-orders-orders"], [], [])
    there.topics["orders"] = topic("orders", segment(0, 0, 65_535, next_offset=4))
    assert "topic orders has 4 records: add --append" in invoke(*words).stderr


def test_another_file_of_the_same_cluster_does_not_make_another_topic(
    invoke: Invoke, cluster: FakeCluster, tmp_path: Path
) -> None:
    files = [written_config(tmp_path / f"{port}.toml", "main", port) for port in (1883, 1884)]
    result = invoke("topic", "copy", "orders", "orders", "--config", str(files[0]), "--to-config", str(files[1]))

    assert (result.exit_code, cluster.sent) == (2, [])
    assert "SOURCE and TARGET are the same topic" in result.stderr
