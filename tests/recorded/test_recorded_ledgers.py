"""Ledgers that released versions wrote are read as those versions read them."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from controller.backup.check import check_shard
from drain.backlog.results import newest_result
from headgate.errors import LedgerError
from headgate.ledger.objects import chunk_path
from headgate.storage.object_store import open_store
from tests.recorded.recording import ARCHIVE, FOLDER, Objects, load, read_everything, states, unpack

ARCHIVES = sorted(FOLDER.glob(f"*/{ARCHIVE}"))
EVIDENCE = (chunk_path(0, 1), chunk_path(0, 90))
Recorded = tuple[Objects, dict[str, Any]]


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.parent.name)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return load(request.param)


def differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yield where ``found`` differs. It may have further fields: a later version adds them with their defaults.

    What is private follows from the rest.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in expected:
            if not str(name).startswith("_"):
                yield from differences(expected[name], found.get(name, "no such field"), f"{where}.{name}")
    elif isinstance(expected, list) and isinstance(found, list | tuple) and len(expected) == len(found):
        for at, value in enumerate(expected):
            yield from differences(value, found[at], f"{where}[{at}]")
    elif expected != found:
        yield f"{where}: {expected} was recorded, {found} is read"


def only(objects: Objects, *folders: str) -> Objects:
    return {path: data for path, data in objects.items() if path.startswith(folders)}


def test_the_state_after_each_chunk_is_what_it_was(recorded: Recorded) -> None:
    objects, expected = recorded

    assert [] == list(differences(expected["states"], states(objects)))


@pytest.mark.parametrize("form", ["chunks", "snapshot", "compacted"])
async def test_state_records_and_counts_are_what_they_were(recorded: Recorded, form: str) -> None:
    objects, expected = recorded
    kept = {path: data for path, data in objects.items() if path not in expected["deleted"]}
    forms = {"chunks": only(objects, "chunks"), "snapshot": only(objects, "chunks", "snapshots"), "compacted": kept}
    found = await read_everything(forms[form])

    assert expected["records"]["kept"]
    assert [] == list(differences({name: expected[name] for name in found}, found))


async def test_a_recorded_ledger_passes_its_check(recorded: Recorded, tmp_path: Path) -> None:
    objects, expected = recorded
    unpack({path: data for path, data in objects.items() if path not in expected["deleted"]}, tmp_path)
    store = open_store(tmp_path.as_uri())

    found = await check_shard(store, 0, 1, lambda *_: None)

    assert ([], len(expected["states"])) == (found.problems, found.last_chunk)
    assert found.ranges
    assert await newest_result(store, 0) is not None


async def test_a_valid_object_in_the_place_of_another_is_named(recorded: Recorded) -> None:
    """A disk may give back what it had before. Trimmed chunks that still exist as evidence are not read."""
    objects, expected = recorded
    kept = {path: data for path, data in objects.items() if path not in expected["deleted"]}
    kinds = [sorted(only(kept, folder)) for folder in ("chunks/", "compacted/", "manifests/")]
    for path, other in [pair for paths in kinds for pair in pairwise(paths)]:
        if path not in EVIDENCE:
            with pytest.raises(LedgerError, match=path):
                await read_everything(kept | {path: kept[other]})
