"""The drawing of a topic's segments."""

from headgate.cli.topics.topic_text import draw_topic
from tests.support.fakes.cli_client import segment, topic


def test_splits_form_a_tree_and_a_merge_is_drawn_under_its_first_parent():
    drawn = draw_topic(
        topic(
            "orders",
            segment(0, 0, 0x7FFF, "sealed", children=[2, 3], next_offset=12_345, size_bytes=99),
            segment(1, 0x8000, 0xFFFF, "sealed", children=[4]),
            segment(2, 0, 0x3FFF, parents=[0]),
            segment(3, 0x4000, 0x7FFF, "sealed", parents=[0], children=[4]),
            segment(4, 0x4000, 0xFFFF, parents=[3, 1], size_bytes=12_345_678),
            subscriptions=("audit", "billing"),
        )
    )

    assert drawn == [
        "orders: 2 active, 3 sealed; shard 2, layout epoch 7",
        "",
        "segment  hashes     state   records     size",
        "0        0000-7fff  sealed    12345     99 B",
        "├─ 2     0000-3fff  active        0      0 B",
        "└─ 3     4000-7fff  sealed        0      0 B",
        "   └─ 4  4000-ffff  active        0  12.3 MB  merged from 3 and 1",
        "1        8000-ffff  sealed        0      0 B",
        "└─ → 4",
        "",
        "0000 ├───────2───────├───────────────────────4───────────────────────┤ ffff",
        "",
        "subscriptions: audit, billing",
    ]
