"""Records a ledger in one archive, with what it says, and reads such archives.

    make record             for each release, and after each change of a format: tests/recorded/<release>/ledger.tar.xz

An archive is never written again: it is what users of that release have. It holds all objects, also those that the
leader has deleted, and `EXPECTED`: the state after each chunk, the records of each topic, and Spark's counts. A later
version may add fields to these, and changes none.
"""

import asyncio
import io
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import pyarrow as pa
import structlog

from controller.snapshots.format import decode_file, encode_snapshot
from controller.snapshots.restore import catch_up
from drain.backlog.aggregates import FACTS, aggregate, contributions
from drain.backlog.counting import read_compacted_facts
from drain.spark.object_reader import read_objects
from headgate.ledger.chunk import Chunk, decode
from headgate.ledger.identity import identity_object
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import IDENTITY_PATH, chunk_path
from headgate.model.entries import Entry, union_of
from headgate.process.child_process import python_module
from headgate.reading.topic_files import list_objects
from headgate.reading.topic_reader import TopicReader
from headgate.storage.object_store import open_store
from shard.requests.topic_commands import describe
from shard.state.shard_state import ShardState
from shard.state.topic import Topic
from tests.recorded.story import first_act, second_act
from tests.support.virtual_loop import VirtualLoop
from tests.support.worlds.one_shard import OneShard

FOLDER: Final = Path(__file__).parent
ARCHIVE: Final = "ledger.tar.xz"
EXPECTED: Final = "expected.msgpack"
JOBS: Final = (("drain.backlog.job",), ("drain.compaction.job", "--chunks", "30"))
"""Programs of Spark, in this order, and their options."""
Objects = dict[str, bytes]
"""Path → data."""


def record(target: Path) -> None:
    """Write an archive. Only what Spark wrote, and its names, differ between two recordings of one version."""
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    objects = _played(first_act, {IDENTITY_PATH: identity_object("1" * 32)})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpack(objects, folder)
        for job, *options in JOBS:
            subprocess.run(python_module(job, "--ledger", folder.as_uri(), *options), check=True)
        written = {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    kept = _played(second_act, written)
    everything = written | kept
    kinds = {type(entry) for chunk in chunks(everything) for entry in chunk.entries}
    assert not (missing := set(get_args(union_of(Entry))) - kinds), f"the story has no {missing}"
    documents = {"deleted": sorted(set(written) - set(kept)), "states": states(everything)}
    everything[EXPECTED] = msgspec.msgpack.encode(documents | asyncio.run(read_everything(kept)))
    target.parent.mkdir(exist_ok=True)
    with tarfile.open(target, "x:xz") as archive:
        for path, data in sorted(everything.items()):
            found = tarfile.TarInfo(path)
            found.size = len(data)
            archive.addfile(found, io.BytesIO(data))


def _played(act: Callable[[OneShard], Coroutine[Any, Any, None]], objects: Objects) -> Objects:
    """Return the objects after an act that begins with ``objects``."""

    async def play() -> Objects:
        world = OneShard()
        world.store.objects.update(objects)
        await act(world)
        return world.store.objects

    return VirtualLoop().run_until_complete(play())


def load(archive: Path) -> tuple[Objects, dict[str, Any]]:
    """Return all objects of a recorded ledger, and what it must say."""
    with tarfile.open(archive) as found:
        objects = {each.name: found.extractfile(each).read() for each in found.getmembers()}  # type: ignore[union-attr]
    return objects, msgspec.msgpack.decode(objects.pop(EXPECTED))


def unpack(objects: Objects, folder: Path) -> None:
    for path, data in objects.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def chunks(objects: Objects) -> list[Chunk]:
    paths = sorted(path for path in objects if path.startswith("chunks/"))
    return [decode(objects[path], shard=0, number=number) for number, path in enumerate(paths, 1)]


def states(objects: Objects) -> list[Any]:
    """Return the state after each chunk, from the chunks alone."""
    state, found = ShardState(0), []
    for chunk in chunks(objects):
        state.apply_all(chunk.entries, chunk=chunk.header.number, at_ms=chunk.header.at_ms)
        found.append(_state(state))
    return found


async def read_everything(objects: Objects) -> dict[str, Any]:
    """Return the state, the records and the counts of a ledger, as daemons, consumers and Spark read them."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(objects, Path(folder))
        ledger, unusable = Ledger(open_store(Path(folder).as_uri()), 0), []
        state, _ = await catch_up(ledger, ShardState(0), unusable.append)
        records = {name: await _records(ledger, topic) for name, topic in sorted(state.topics.items())}
        counts = await _counts(ledger, Path(folder).as_uri())
        return {"state": _state(state), "records": records, "counts": counts, "unusable": unusable}


def _state(state: ShardState) -> Any:
    """Return the state with the names that a snapshot has for it."""
    file = decode_file(encode_snapshot(state, written_at_ms=0), shard=state.shard, chunk=state.chunk)
    return [msgspec.msgpack.decode(zlib.decompress(part)) for part in (file.core, *file.topics, *file.producers)]


async def _records(ledger: Ledger, topic: Topic) -> Any:
    reader = TopicReader(ledger, describe(topic, 0), starts=dict.fromkeys(topic.tails, 0))
    return [each._asdict() async for each in reader.stored()] if topic.external is None else []


async def _counts(ledger: Ledger, url: str) -> Any:
    """Return what Spark counts: the sums of compacted ranges, and those of the chunks after them."""
    compacted = await read_compacted_facts(ledger.store, ledger.shard)
    tables = [] if compacted is None else [compacted[1]]
    paths = [(chunk_path(0, number), None) for number in (await list_objects(ledger)).chunks]
    tables += [aggregate(contributions(pa.Table.from_batches([facts]))) for facts in read_objects(url, paths, FACTS)]
    return sorted(aggregate(pa.concat_tables(tables)).to_pylist(), key=repr)


if __name__ == "__main__":
    path = FOLDER / version("headgate-client") / ARCHIVE
    if path.exists():
        sys.exit(f"{path} exists: it stays as it is once its release is published; before that, remove it first")
    record(path)
