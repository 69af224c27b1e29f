"""The comparison with other servers: the ratios, also without one of them."""

from bench.cluster import peers

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
