"""A count is never merged with that of another ledger, wherever it is remembered. Without Spark."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from drain.backlog.counting import Counted
from drain.backlog.job import BacklogJob
from drain.backlog.merge import StateRow
from drain.backlog.results import Result, newest_result, publish_result
from drain.protocol import CountedLedger
from drain.spark.chunks import LedgerChunks, LedgerReplacedError
from headgate.errors import LedgerError
from headgate.ledger.identity import identity_object
from headgate.ledger.objects import IDENTITY_PATH, chunk_path
from tests.drain.backlog.test_job_requests import chunk
from tests.support.fakes.object_store import FakeStore

OWN, OTHER = "a" * 32, "b" * 32
URL = "file:///ledger"
FOREIGN = Result(0, 2, (StateRow(1, None, 0, records=9),), ledger_id=OTHER)


class CountedChunks:
    """A job over a ledger of three chunks, and the numbers of the chunks that it counted."""

    def __init__(self, folder: Path, results: FakeStore | None = None) -> None:
        self.chunks = LedgerChunks(folder.as_uri())
        self.store = self.chunks.store = FakeStore(objects={chunk_path(0, n): chunk(0, n) for n in (1, 2, 3)})
        self.store.objects[IDENTITY_PATH] = identity_object(OWN)
        self.counted: list[int] = []
        self.job = BacklogJob(self.chunks, self._count, results=results)

    async def _count(self, due: Mapping[int, range]) -> Mapping[int, Counted]:
        self.counted += [number for numbers in due.values() for number in numbers]
        return dict.fromkeys(due, Counted((), 1))


async def test_a_run_names_the_ledger_that_it_counted_in_the_outcome_and_in_the_result(tmp_path: Path) -> None:
    counted = CountedChunks(tmp_path)
    outcome = await counted.job.run([0])

    assert outcome.ledger == CountedLedger(OWN, tmp_path.as_uri())
    assert (await newest_result(counted.store, 0)).ledger_id == OWN


async def test_results_of_another_ledger_beside_this_one_are_deleted_and_counted_again(tmp_path: Path) -> None:
    counted = CountedChunks(tmp_path)
    await publish_result(counted.store, FOREIGN)
    outcome = await counted.job.run([0])

    assert counted.counted == [1, 2, 3]
    assert (outcome.results[0].rows, outcome.results[0].ledger_id) == ((), OWN)
    assert outcome.results[0] == await newest_result(counted.store, 0)


@pytest.mark.parametrize("watermark", [2, 3], ids=["an earlier chunk", "the same chunk"])
async def test_results_of_another_cluster_elsewhere_are_neither_merged_nor_deleted(tmp_path: Path, watermark: int):
    elsewhere = FakeStore()
    await publish_result(elsewhere, Result(0, watermark, FOREIGN.rows, ledger_id=OTHER))
    before = dict(elsewhere.objects)
    outcome = await CountedChunks(tmp_path, elsewhere).job.run([0])

    assert all(text in outcome.failures[0] for text in (OTHER, OWN, "--out"))
    assert elsewhere.objects == before


async def test_a_result_that_another_ledger_published_meanwhile_is_not_taken_for_this_one(tmp_path: Path) -> None:
    elsewhere = FakeStore()
    counted = CountedChunks(tmp_path, elsewhere)

    async def count(_: Mapping[int, range]) -> Mapping[int, Counted]:
        await publish_result(elsewhere, Result(0, 3, (), ledger_id=OTHER))
        return {0: Counted((), 1)}

    counted.job._count = count
    assert "counts another ledger" in (await counted.job.run([0])).failures[0]


@pytest.mark.parametrize("remembered", [True, False], ids=["in memory", "published"])
async def test_a_count_of_a_ledger_that_was_put_back_is_not_continued(tmp_path: Path, remembered: bool):
    """It has grown past what was counted, under the same id, while ledger time waits for a clock that was ahead."""
    counted = CountedChunks(tmp_path)
    await counted.job.run([0])
    counted.store.objects |= {chunk_path(0, n): chunk(0, n, term_id=5) for n in (3, 4)}
    if not remembered:
        counted.job._last.clear()
    await counted.job.run([0])

    assert counted.counted == [1, 2, 3, 1, 2, 3, 4]


async def test_a_ledger_that_gets_its_id_later_is_counted_again_under_it(tmp_path: Path) -> None:
    counted = CountedChunks(tmp_path)
    del counted.store.objects[IDENTITY_PATH]
    assert (await counted.job.run([0])).ledger.ledger_id == ""
    counted.store.objects[IDENTITY_PATH] = identity_object(OWN)
    await counted.job.run([0])

    assert counted.counted == [1, 2, 3, 1, 2, 3]


async def test_a_process_ends_when_another_ledger_appears_at_its_url(tmp_path: Path) -> None:
    counted = CountedChunks(tmp_path)
    await counted.job.run([0])
    counted.store.objects[IDENTITY_PATH] = identity_object(OTHER)

    with pytest.raises(LedgerReplacedError, match=f"its id was {OWN}, and is {OTHER}"):
        await counted.job.run([0])


async def test_a_ledger_without_its_id_is_not_counted_until_it_is_back(tmp_path: Path) -> None:
    """A disk that is not mounted: the folder exists, and is empty."""
    counted = CountedChunks(tmp_path)
    await counted.job.run([0])
    objects, counted.store.objects = counted.store.objects, {}
    assert f"mount the ledger with the id {OWN}" in (await counted.job.run([0])).failures[0]
    counted.store.objects = objects

    assert not (await counted.job.run([0])).failures


# Gaps


class LateListing(FakeStore):
    """A store whose listings leave out one chunk, as when it is created while another writer's is listed."""

    left_out = ""

    async def names(self, prefix: str, after: str = "") -> list[str]:
        return [name for name in await super().names(prefix, after) if f"{prefix}/{name}" != self.left_out]


@pytest.mark.parametrize(("watermark", "left_out"), [(0, 2), (1, 2), (3, 3)], ids=["first run", "later run", "the end"])
async def test_a_chunk_that_a_listing_leaves_out_is_no_gap(tmp_path: Path, watermark: int, left_out: int) -> None:
    counted = CountedChunks(tmp_path)
    counted.chunks.store = LateListing(objects=counted.store.objects)
    counted.chunks.store.left_out = chunk_path(0, left_out)
    for head in (0, 9):  # unknown, or one that is being written
        assert await counted.chunks.newer_than(0, watermark, head) == range(watermark + 1, 4)

    del counted.store.objects[chunk_path(0, left_out)]
    with pytest.raises(LedgerError, match=r"a gap|counted but missing"):
        await counted.chunks.newer_than(0, watermark, 9)
