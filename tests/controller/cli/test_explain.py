"""`headgate explain` and `headgate plan`: what is asked of the client, and what is printed."""

from __future__ import annotations

import json

from tests.controller.cli.conftest import Invoke
from tests.support.cli_client import FakeCluster


def test_explain_prints_sentences_with_the_reasons_set_in(invoke: Invoke, cluster: FakeCluster):
    result = invoke("explain", "orders", "-s", "billing")

    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "All is explained.",
        "",
        "Segments",
        "  Segment 1 waits.",
        "    For 0.",
        "",
        "Consumers",
        "  c1 is idle.",
    ]
    assert cluster.calls == [("explain", "orders", "billing", None, None)]


def test_explain_asks_about_what_was_typed_and_prints_json_for_programs(invoke: Invoke, cluster: FakeCluster):
    result = invoke("explain", "orders", "-s", "billing", "--segment", "1", "--consumer", "c1", "--json")

    assert json.loads(result.stdout)["segments"][0]["sentences"] == ["Segment 1 waits.", "For 0."]
    assert cluster.calls == [("explain", "orders", "billing", 1, "c1")]


def test_plan_asks_for_all_changes_at_once_and_prints_what_would_move(invoke: Invoke, cluster: FakeCluster):
    result = invoke(
        *("plan", "orders", "-s", "billing", "--split", "0", "--split", "3", "--merge", "4,5"),
        *("--add-consumer", "c9", "--remove-consumer", "c1"),
    )

    assert result.exit_code == 0, result.stderr
    assert cluster.calls == [
        (
            "plan",
            "orders",
            "billing",
            {"splits": (0, 3), "merges": [(4, 5)], "add_consumers": ("c9",), "remove_consumers": ("c1",)},
        ),
    ]
    assert "0000-3fff" in result.stdout
    assert "would move once every sealed segment is drained:" in result.stdout
    assert "would move at once:" not in result.stdout
    assert "nothing was changed" in result.stderr


def test_a_merge_that_is_not_a_pair_is_a_mistake_that_names_it(invoke: Invoke, cluster: FakeCluster):
    result = invoke("plan", "orders", "-s", "billing", "--merge", "4")

    assert result.exit_code == 2
    assert "'4'" in result.stderr
    assert cluster.calls == []
