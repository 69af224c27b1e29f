"""`headgate shard`: the leaders of shards, and transfers."""

from __future__ import annotations

import json

import pytest

from tests.support.samples.cluster_overviews import cluster as _overview


def test_the_list_names_the_leader_of_each_shard(invoke, context):
    context.cluster.overview = _overview(leaders=("vm-1", None))
    result = invoke("shard", "list")

    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [["0", "3", "vm-1"], ["1", "3", "-"]]
    assert [each["daemon"] for each in json.loads(invoke("shard", "list", "--json").stdout)] == ["vm-1", None]


def test_a_transfer_names_the_new_leader(invoke, context):
    result = invoke("shard", "transfer", "3", "vm-2")

    assert (result.exit_code, result.stderr) == (0, "daemon vm-2 leads shard 3\n")
    assert context.cluster.calls == [("transfer_shard", 3, "vm-2")]
    assert json.loads(invoke("shard", "transfer", "3", "vm-2", "--json").stdout) == {"shard": 3, "daemon": "vm-2"}


@pytest.mark.parametrize("number", ["-1", "x"])
def test_a_shard_is_a_number(invoke, number):
    result = invoke("shard", "transfer", "--", number, "vm-2")

    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
