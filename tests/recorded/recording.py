"""Records a ledger in one archive, with what it says, and reads such archives.

    make record             for each release, and after each change of a format: tests/recorded/<release>/ledger.tar.xz

An archive is never written again: it is what users of that release have. It holds all objects, also those that the
leader has deleted, and `EXPECTED`: the state after each chunk, the records of each topic, and Spark's counts. A later
version may add fields to these, and changes none.
"""

import asyncio
import io
import json
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
from drain.backlog.compacted_facts import read_compacted_facts
from drain.spark.object_reader import read_objects
from headgate.ledger.chunk import decode
from headgate.ledger.identity import identity_object
from headgate.ledger.ledger import Ledger
from headgate.ledger.paths import IDENTITY_PATH, chunk_path
from headgate.model.entries import Entry, union_of
from headgate.process.child_command import python_module
from headgate.reading.topic_files import list_objects
from headgate.reading.topic_reader import TopicReader
from headgate.storage.object_store import open_store
from shard.requests.topic_commands import describe
from shard.state.shard_state import ShardState
from shard.steps import complete_now
from tests.recorded.story import first_act, second_act
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.worlds.one_shard import OneShard

FOLDER: Final = Path(__file__).parent
ARCHIVE: Final = "ledger.tar.xz"
EXPECTED: Final = "expected.json"
JOBS: Final = (("drain.backlog.job",), ("drain.compaction.job", "--chunks", "30"))
"""Programs of Spark, in this order, and their options."""
Objects = dict[str, bytes]
"""Path → data."""


def record(target: Path) -> None:
    """Write an archive. Only what Spark wrote, and its names, differ between two recordings of one version."""
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    world = _played(first_act, {IDENTITY_PATH: identity_object("1" * 32)})
    with tempfile.TemporaryDirectory() as folder:
        unpack(world.store.objects, Path(folder))
        for job, *options in JOBS:
            subprocess.run(python_module(job, "--ledger", Path(folder).as_uri(), *options), check=True)
        written = _objects_in(Path(folder))
    world = _played(second_act, dict(written))
    kept = world.store.objects
    documents = {
        "deleted": sorted(set(written) - set(kept)),
        "states": asyncio.run(states(written | kept)),
        **asyncio.run(read_everything(kept)),
    }
    target.parent.mkdir(exist_ok=True)
    with tarfile.open(target, "x:xz") as archive:
        for path, data in sorted((written | kept | {EXPECTED: json.dumps(documents).encode()}).items()):
            found = tarfile.TarInfo(path)
            found.size = len(data)
            archive.addfile(found, io.BytesIO(data))


def _played(act: Callable[[OneShard], Coroutine[Any, Any, None]], objects: Objects) -> OneShard:
    async def play() -> OneShard:
        world = OneShard()
        world.store.objects.update(objects)
        await act(world)
        return world

    return VirtualLoop().run_until_complete(play())


def load(archive: Path) -> tuple[Objects, dict[str, Any]]:
    """Return all objects of a recorded ledger, and what it must say."""
    with tarfile.open(archive) as found:
        objects = {each.name: found.extractfile(each).read() for each in found.getmembers()}  # type: ignore[union-attr]
    return objects, json.loads(objects.pop(EXPECTED))


def unpack(objects: Objects, folder: Path) -> None:
    for path, data in objects.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def _objects_in(folder: Path) -> Objects:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def states(objects: Objects) -> list[Any]:
    """Return the state after each chunk, from the chunks alone. Raises AssertionError unless every kind of entry occurs."""
    state, found, kinds = ShardState(0), [], set()
    for number in range(1, 1 + sum(path.startswith("chunks/") for path in objects)):
        chunk = decode(objects[chunk_path(0, number)], shard=0, number=number)
        state.apply_all(chunk.entries, chunk=number, at_ms=chunk.header.at_ms)
        kinds |= {type(entry) for entry in chunk.entries}
        found.append(_state(state))
    missing = {each.__name__ for each in set(get_args(union_of(Entry))) - kinds}
    assert not missing, f"the story has no {sorted(missing)}"
    return found


async def read_everything(objects: Objects) -> dict[str, Any]:
    """Return the state, the records and the counts of a ledger, as daemons, consumers and Spark read them."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(objects, Path(folder))
        ledger = Ledger(open_store(Path(folder).as_uri()), 0)
        state, _ = await catch_up(ledger, ShardState(0), unusable, complete_now)
        return {
            "state": _state(state),
            "records": {name: await _records(ledger, state, name) for name in sorted(state.topics)},
            "counts": await _counts(ledger, Path(folder).as_uri()),
        }


def unusable(number: int) -> None:
    raise AssertionError(f"snapshot {number} cannot be used")


def _state(state: ShardState) -> Any:
    """Return the state with the names that a snapshot has for it. What is private follows from the rest."""
    file = decode_file(encode_snapshot(state, written_at_ms=0), shard=state.shard, chunk=state.chunk)
    parts = (msgspec.msgpack.decode(zlib.decompress(part)) for part in (file.core, *file.topics, *file.producers))
    return [plain(part) for part in parts]


async def _records(ledger: Ledger, state: ShardState, topic: str) -> Any:
    described = describe(state.topics[topic], state.at_ms)
    if described.external is not None:
        return []
    reader = TopicReader(ledger, described, starts={each.segment: 0 for each in described.segments})
    return [plain(each._asdict()) async for each in reader.stored()]


async def _counts(ledger: Ledger, url: str) -> Any:
    compacted = await read_compacted_facts(ledger.store, ledger.shard)
    tables = [] if compacted is None else [compacted[1]]
    paths = [(chunk_path(0, number), None) for number in (await list_objects(ledger)).chunks]
    tables += [aggregate(contributions(pa.Table.from_batches([facts]))) for facts in read_objects(url, paths, FACTS)]
    return sorted((plain(row) for row in aggregate(pa.concat_tables(tables)).to_pylist()), key=json.dumps)


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: bytes in hexadecimal digits, and a map without names as its pairs."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: plain(each) for key, each in value.items() if not key.startswith("_")}
        return [[plain(key), plain(each)] for key, each in value.items()]
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    path = FOLDER / version("headgate") / ARCHIVE
    if path.exists():
        sys.exit(f"{path} exists: it stays as it is once its release is published; before that, remove it first")
    record(path)
