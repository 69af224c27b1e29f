"""`headgate cluster`, `daemon` and `shard`: what is asked for, and the tables."""

import json
from typing import Any
from unittest.mock import AsyncMock, call

import pytest

from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeAdmin, FakeCluster
from tests.support.samples import cluster_overviews


@pytest.mark.parametrize(
    ("words", "method", "wanted", "text"),
    [
        ("cluster set-shards 8 --dry-run", "set_shards", call(8, dry_run=True), "would get 8 shards; all topics stay"),
        ("cluster set-shards 8", "set_shards", call(8, dry_run=False), "and 1 of them is looked for in more than one"),
        ("shard transfer 3 b", "transfer_shard", call(3, "b"), "daemon b leads shard 3"),
        ("daemon drain b --off", "set_maintenance", call("b", on=False), "the maintenance of daemon b has ended"),
    ],
)
def test_a_command_asks_for_what_it_is_given(
    words: str, method: str, wanted: Any, text: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = AsyncMock(return_value=1)
    monkeypatch.setattr(FakeAdmin, method, asked)
    result = invoke(*words.split())

    assert ([wanted], True, "") == (asked.await_args_list, text in result.stderr, result.stdout)


def test_daemons_are_listed_with_their_shards_and_shards_with_their_leaders(invoke: Invoke, cluster: FakeCluster):
    daemons = [cluster_overviews.daemon("a", spread="settled"), cluster_overviews.daemon("b", spread="leaving")]
    cluster.overview = cluster_overviews.cluster(daemons=daemons, leaders=("a", None, "a"))
    for what, rows in (
        ("daemon", [["a", "ready", "settled", "0.1.0", "0,", "2"], ["b", "ready", "leaving", "0.1.0", "-"]]),
        ("shard", [["0", "3", "a"], ["1", "3", "-"], ["2", "3", "a"]]),
    ):
        assert rows == [line.split() for line in invoke(what, "list").stdout.splitlines()[2:]]
        assert len(rows) == len(json.loads(invoke(what, "list", "--json").stdout))
