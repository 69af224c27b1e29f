"""`headgate ledger copy` and `headgate ledger check`."""

import asyncio
import json
from pathlib import Path

import pytest

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.identity import name_level
from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from headgate.storage.object_store import open_store
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.memory_ledger import LedgerInMemory


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A ledger of one shard in a folder."""
    folder = tmp_path / "ledger"
    for path, data in LedgerInMemory(8).store.objects.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def test_a_copy_is_checked_and_copied_again(invoke: Invoke, source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    first = invoke("ledger", "copy", str(source), copy.as_uri())
    check = invoke("ledger", "check", str(copy), "--json")
    second = invoke("ledger", "copy", str(source), str(copy), "--json")

    assert (0, f"copied 8 chunks of 1 shard to {copy.as_uri()}\n") == (first.exit_code, first.stderr)
    assert json.loads(check.stdout)["intact"]
    assert 8 == json.loads(check.stdout)["shards"][0]["last_chunk"]
    assert 0 == json.loads(second.stdout)["shards"][0]["chunks"]


def test_a_problem_is_a_line_and_the_exit_code(invoke: Invoke, source: Path) -> None:
    (source / chunk_path(0, 3)).unlink()
    result = invoke("ledger", "check", str(source))

    said = "shard 0: chunks/shard=0000: chunks 3 to 3 are missing, and no compacted range contains them\n"
    assert (1, True) == (result.exit_code, said in result.stderr)


def test_the_table_of_an_intact_ledger_fits_eighty_columns(invoke: Invoke, source: Path) -> None:
    result = invoke("ledger", "check", str(source))

    assert (0, f"{source} is intact: 1 shard\n") == (result.exit_code, result.stderr)
    assert all(len(line.rstrip()) <= 80 for line in result.stdout.splitlines())
    assert "1970-01-01 00:00:00" in result.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("copy", "SOURCE", "SOURCE"), "are one store; choose another destination"),
        (("copy", "/nowhere/at/all", "SOURCE"), "/nowhere/at/all contains no ledger"),
        (("check", "ftp://host/x"), "ledger URL 'ftp://host/x'"),
    ],
    ids=["one store", "no ledger", "no store"],
)
def test_a_mistake_is_one_line(invoke: Invoke, source: Path, words: tuple[str, ...], named: str) -> None:
    result = invoke("ledger", *(str(source) if word == "SOURCE" else word for word in words))

    assert 1 == result.exit_code
    assert named in result.stderr
    assert 1 == len(result.stderr.splitlines())


def test_a_second_name_of_the_source_is_no_destination(invoke: Invoke, source: Path) -> None:
    (other := source.with_name("other")).symlink_to(source)

    assert 1 == invoke("ledger", "copy", str(source), str(other)).exit_code


def test_a_ledger_with_more_shards_than_the_cluster_is_refused(invoke: Invoke, source: Path) -> None:
    (source / "chunks" / "shard=0001").mkdir()
    result = invoke("ledger", "check", str(source), "--shards", "1")

    said = f"headgate: {source} has shard 1, so it is not a ledger of 1 shards\n"
    assert (1, said) == (result.exit_code, result.stderr)


def test_another_number_of_shards_than_the_ledger_names_is_a_problem(invoke: Invoke, source: Path) -> None:
    """Those of its last shards that were never led have no folder."""
    asyncio.run(name_level(open_store(source.as_uri()), 1, 2))
    found = [invoke("ledger", "check", str(source), *words) for words in ((), ("--shards", "4"))]

    assert "the ledger names 2 shards" not in found[0].stderr
    assert "shard 0: the ledger names 2 shards of its cluster, and --shards 4 was given" in found[1].stderr
    assert found[1].exit_code == 1


def test_a_name_in_two_shards_is_a_problem(invoke: Invoke, tmp_path: Path) -> None:
    """The copies of two shards are of different moments: in between, the topic was deleted and created elsewhere."""
    for shard in (0, 1):
        builder = ChunkBuilder()
        builder.add(e.TermStarted(leader_epoch=1, instance="a"))
        builder.add(e.ShardsGrown(counts=(1, 2)))
        builder.add(e.TopicCreated(topic_id=1, topic="b", segments=1, token="t"))
        path = tmp_path / chunk_path(shard, 1)
        path.parent.mkdir(parents=True)
        path.write_bytes(builder.encode(shard=shard, number=1, leader_epoch=1, at_ms=0))

    moments = "topic 'b' is in 2 shards, whose copies are of different moments: copy again"
    assert moments in invoke("ledger", "check", str(tmp_path)).stderr.splitlines()


def test_beside_a_damaged_shard_the_others_are_copied(invoke: Invoke, source: Path, tmp_path: Path) -> None:
    chunk = source / chunk_path(1, 1)
    chunk.parent.mkdir()
    chunk.write_bytes(b"damaged")
    result = invoke("ledger", "copy", str(source), str(tmp_path / "copy"), "--json")

    assert [(0, 8)] == [(each["shard"], each["chunks"]) for each in json.loads(result.stdout)["shards"]]
    assert (1, True) == (result.exit_code, result.stderr.startswith("shard 1 is not complete in the copy: "))
