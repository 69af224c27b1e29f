"""`headgate subscription parked`, `resume` and `drop`: tables, documents, requests and refusals."""

import json

import pytest

from headgate import ParkedKeyInfo
from headgate.protocol.requests import ResumeKey
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster

BILLING = "orders", "billing"


def parked_key(key: bytes, records: int, *, resuming: bool = False) -> ParkedKeyInfo:
    return ParkedKeyInfo(
        key=key,
        since_ms=1_769_882_400_000,
        records=records,
        reason="bad\x1b[2J",
        dead_letter_topic="dead",
        is_resuming=resuming,
        parking=4,
    )


@pytest.fixture(autouse=True)
def keys(cluster: FakeCluster) -> None:
    cluster.parked = [parked_key(b"k1", 2), parked_key(b"\xff", 1, resuming=True), parked_key(b"k3", 0, resuming=True)]


def test_parked_keys_are_a_table_without_control_characters_or_a_document(invoke: Invoke, cluster: FakeCluster):
    _, _, *lines = invoke("subscription", "parked", *BILLING).stdout.splitlines()
    since = "2026-01-31", "18:00"
    assert [
        ("k1", "2", *since, "parked", r"bad\x1b[2J"),
        ("/w==", "(base64)", "1", *since, "resuming", r"bad\x1b[2J"),
        ("k3", "0", *since, "ending", r"bad\x1b[2J"),
    ] == [tuple(line.split()) for line in lines]
    first, second, _ = json.loads(invoke("subscription", "parked", *BILLING, "--json").stdout)
    assert ("k1", 2, False, "dead") == tuple(first[n] for n in ("key", "records", "is_resuming", "dead_letter_topic"))
    assert ("/w==", "base64") == (second["key"], second["key_encoding"])
    cluster.parked = []
    assert "no key is parked\n" == invoke("subscription", "parked", *BILLING).stderr


@pytest.mark.parametrize("dropped", [False, True], ids=["resume", "drop"])
def test_a_key_is_text_or_base64_and_a_document_says_which(dropped: bool, invoke: Invoke, cluster: FakeCluster):
    command = ("subscription", "drop", *BILLING, "--yes") if dropped else ("subscription", "resume", *BILLING)
    assert "key k1 of subscription billing of orders " in invoke(*command, "k1").stderr
    document = json.loads(invoke(*command, "/w==", "--base64", "--json").stdout)
    of = {"topic": "orders", "subscription": "billing"}
    expected = {"dropped": True, "records": 1} if dropped else {"resumed": True}
    assert of | {"key": "/w==", "key_encoding": "base64"} | expected == document
    assert [ResumeKey(*BILLING, key, token="", drop=dropped) for key in (b"k1", b"\xff")] == cluster.calls
    refused = invoke(*command, "no", "--base64")
    assert (2, "headgate: Invalid value for KEY: 'no' is not base64") == (refused.exit_code, refused.stderr[:51])


def test_a_key_that_is_not_parked_is_not_dropped(invoke: Invoke, cluster: FakeCluster):
    refused = invoke("subscription", "drop", *BILLING, "k9", "--yes")
    assert (1, []) == (refused.exit_code, cluster.calls)
    assert "headgate: key k9 is not parked; see: headgate subscription parked orders billing\n" == refused.stderr
