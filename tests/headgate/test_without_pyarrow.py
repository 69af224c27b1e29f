"""Clients work where pyarrow, numpy and pandas are not installed.

The program is this file, run as a process of its own in which they cannot be imported.
"""

import asyncio
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

BLOCKED = ("pyarrow", "numpy", "pandas", "pyspark")


async def main(url: str) -> None:
    """Import everything that clients can, and read what a consumer reads of topic 1."""
    sys.modules.update(dict.fromkeys(BLOCKED))  # The import of None is an ImportError.
    import headgate  # noqa: PLC0415

    for module in pkgutil.walk_packages(headgate.__path__, "headgate."):
        if not re.search(r"__main__$|^headgate\.(lakehouse|spark)\.", module.name):
            importlib.import_module(module.name)
    for name in headgate.__all__:
        getattr(headgate, name)

    from headgate.ledger.ledger import Ledger  # noqa: PLC0415
    from headgate.protocol.replies import TopicInfo  # noqa: PLC0415
    from headgate.reading.segment_reader import ChunkCache, CompactedRecords  # noqa: PLC0415
    from headgate.reading.topic_files import positions_at  # noqa: PLC0415
    from headgate.storage.object_store import open_store  # noqa: PLC0415
    from headgate.views.topics import SegmentInfo  # noqa: PLC0415

    store = open_store(url)
    ledger, compacted, chunks = Ledger(store, 0), CompactedRecords(store, 0, 1), ChunkCache(Ledger(store, 0), 1)
    objects, last = await compacted.locate(0, 0, 1)
    offsets = [at for item in objects for rows in (await compacted.rows(item, 0)).parts() for at in rows.offsets]
    for number in range(last + 1, await ledger.newest() + 1):
        offsets += [at for rows in (await chunks.rows(number, number))[0].parts() for at in rows.offsets]
    segment = SegmentInfo(
        segment=0,
        first_hash=0,
        last_hash=65535,
        state="open",
        parents=[],
        children=[],
        next_offset=len(offsets),
        size_bytes=0,
        created_at_ms=0,
    )
    topic = TopicInfo(topic="t", topic_id=1, shard=0, layout_epoch=1, segments=[segment], subscriptions=[])
    found = [(await positions_at(ledger, topic, at_ms))[0] for at_ms in (2000, 3000, 4000)]
    entries = [type(entry).__name__ for entry in (await ledger.read(last + 1)).entries]
    sys.stdout.write(json.dumps({"compacted": last, "offsets": offsets, "positions": found, "entries": entries}))


def test_everything_is_imported_and_each_kind_of_object_is_read(tmp_path: Path) -> None:
    """A compacted range, a chunk that arro3 wrote, and one that pyarrow wrote."""
    from headgate.ledger.ledger import Ledger  # noqa: PLC0415
    from headgate.storage.object_store import open_store  # noqa: PLC0415
    from tests.support.samples.ledgers import WrittenLedger  # noqa: PLC0415
    from trials.compaction import compact  # noqa: PLC0415

    written = WrittenLedger(tmp_path)
    topic_id = written.topic()
    for records in (5, 2, 6000):
        written.store(topic_id, 0, records)
        written.commit()
    asyncio.run(compact(Ledger(open_store(written.url), 0), 1, 1))

    found = subprocess.run([sys.executable, __file__, written.url], capture_output=True, text=True, check=False)

    assert 0 == found.returncode, found.stderr
    assert {
        "compacted": 1,
        "offsets": list(range(6007)),
        "positions": [5, 7, 6007],
        "entries": ["RecordsStored"],
    } == json.loads(found.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
