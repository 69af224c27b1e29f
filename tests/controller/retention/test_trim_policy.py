"""Which chunks can be deleted."""

import pytest

from controller.retention.trim_policy import deletable, trim_point
from headgate.ledger.paths import ChunkRange

HOUR = 3_600_000


def point(snapshots: list[int], *manifests: tuple[int, int, int]) -> int:
    """Return the trim point at hour 10 with a delay of 6 h; manifests are (first, last, hour written)."""
    visible = [(ChunkRange(first, last), (10 - hour) * HOUR) for first, last, hour in manifests]
    return trim_point(snapshots, visible, delay_ms=6 * HOUR)


@pytest.mark.parametrize(
    ("snapshots", "manifests", "expected"),
    [
        ([30, 40], [(1, 20, 0)], 20),
        ([15, 40], [(1, 20, 0)], 15),
        ([], [(1, 20, 0)], 1),
        ([30], [], 1),
        ([30], [(1, 20, 5)], 1),
        ([30], [(1, 10, 4), (11, 20, 5)], 10),
        ([30], [(11, 20, 0)], 1),
        ([60], [(1, 10, 0), (11, 20, 1), (1, 20, 9)], 20),
    ],
    ids=[
        "the last compacted chunk is kept",
        "chunks from the oldest snapshot on are kept",
        "no snapshot",
        "nothing is compacted",
        "a manifest younger than the delay",
        "one manifest younger than the delay",
        "no manifest covers the first chunks",
        "replaced manifests count",
    ],
)
def test_the_trim_point_keeps_what_restore_and_readers_need(
    snapshots: list[int], manifests: list[tuple[int, int, int]], expected: int
) -> None:
    assert expected == point(snapshots, *manifests)


def test_the_first_chunk_of_every_term_is_kept() -> None:
    assert [2, 3, 5] == deletable([5, 4, 3, 2, 1, 6], below=6, term_start_chunks=[1, 4])
