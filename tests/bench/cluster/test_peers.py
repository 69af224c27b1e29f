"""The comparison with other servers: the ratios, and servers that are missing."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bench.cluster import peers
from headgate.errors import HeadgateError

SPEEDS = {
    "peers_100": {"headgate": [60.0, 90.0, 50.0], "redis": [10.0, 30.0, 10.0], "nats": [20.0, 10.0, 20.0]},
    "peers_1000": {"headgate": [40.0] * 3, "redis": [10.0] * 3, "nats": [20.0] * 3},
    "peers_read": {"headgate": [30.0] * 3, "redis": [20.0] * 3, "nats": [300.0] * 3},
}
SINGLES = {"peers_ack": {"headgate": [[0.003] * 98 + [0.006] * 2] * 3, "redis": [[0.001] * 100] * 3}}


def test_the_value_is_the_lesser_ratio_to_the_best_peer_of_each_round() -> None:
    measured = peers.compared(SPEEDS, SINGLES)

    assert measured.value == 2
    assert (3, 2, 1.5) == tuple(measured.parts[part] for part in SPEEDS)
    assert (3, 2, 6.0) == tuple(measured.parts[part] for part in ("peers_ack", "peers_ack_tail", "headgate_ack_p99_ms"))
    assert ["value", "peers_100", "peers_ack", "peers_e2e", "peers_e2e_tail"] == peers.BENCHMARK.missed(measured)


def test_without_redis_what_is_divided_by_it_is_missing() -> None:
    speeds = {part: {name: each for name, each in found.items() if name != "redis"} for part, found in SPEEDS.items()}

    parts = peers.compared(speeds, {"peers_ack": {"headgate": SINGLES["peers_ack"]["headgate"]}}).parts

    assert {"peers_read", "peers_ack"}.isdisjoint(parts)
    assert parts["peers_ack_tail"] == 2


async def test_a_missing_server_or_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "client.py").write_text("import client_of_no_server")
    (tmp_path / "server.py").write_text(
        "from bench.harness.peers.peer import start_server\n"
        "class PEER:\n"
        "    async def start(self, stack, folder, streams):\n"
        "        await start_server(stack, folder, 1, 'no-such-server')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async with AsyncExitStack() as stack:
        with pytest.raises(HeadgateError) as raised:
            await peers.started({"one": "client", "other": "server"}, stack, tmp_path)

    assert str(raised.value).endswith(
        "one: the Python package client_of_no_server is not installed; other: no-such-server is not installed"
    )
