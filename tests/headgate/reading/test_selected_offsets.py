"""Which offsets a reader of a topic wants."""

import asyncio

import pytest

from headgate.errors import PositionOutOfRangeError
from headgate.reading.stored_rows import select_offsets
from headgate.views.topics import TopicInfo
from tests.support.samples.positioned_ledger import LedgerWithPositions


@pytest.fixture(scope="module")
def topic() -> TopicInfo:
    """Segment 0 was pruned, 1 has two records, 2 has none and 3 has one."""

    async def write() -> TopicInfo:
        known = LedgerWithPositions()
        for steps in ((0, 1, 1), ("split",), (3,)):
            await known.write(10, *steps)
        return known.description()

    described = asyncio.run(write())
    kept = [each for each in described.segments if each.segment != 0]
    return TopicInfo(
        topic="t", topic_id=1, shard=0, layout_epoch=1, segments=tuple(kept), subscriptions=described.subscriptions
    )


@pytest.mark.parametrize(
    ("offsets", "selected"),
    [
        pytest.param(None, {1: (0, 2), 2: (0, 0), 3: (0, 1)}, id="all"),
        pytest.param({3: (0, None), 1: (1, None)}, {1: (1, 2), 3: (0, 1)}, id="from an offset to the end"),
        pytest.param({1: (0, 1)}, {1: (0, 1)}, id="up to an offset"),
        pytest.param({1: (2, None)}, {1: (2, 2)}, id="none, at the end"),
        pytest.param({}, {}, id="no segment"),
    ],
)
def test_offsets(topic: TopicInfo, offsets: dict | None, selected: dict) -> None:
    assert list(selected.items()) == list(select_offsets(topic, offsets).items())


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        pytest.param(
            {0: (0, 5)},
            "segment 0 of topic 't' was pruned, and its records were deleted; "
            "its segments, and their offsets, are 1 (0 to 2), 2 (0 to 0), 3 (0 to 1)",
            id="pruned",
        ),
        pytest.param({9: (0, None)}, "topic 't' has no segment 9; its segments", id="never existed"),
        pytest.param({1: (3, None)}, "segment 1 of topic 't' ends at offset 2: choose 0 to 2", id="behind the end"),
        pytest.param({1: (0, 3)}, "ends at offset 2", id="up to behind the end"),
        pytest.param({1: (-1, 1)}, "choose 0 to 2", id="negative"),
        pytest.param({1: (2, 1)}, "choose 0 to 2", id="backwards"),
    ],
)
def test_offsets_that_do_not_exist(topic: TopicInfo, offsets: dict, text: str) -> None:
    with pytest.raises(PositionOutOfRangeError) as caught:
        select_offsets(topic, offsets)
    assert text in str(caught.value)
