"""The judgement on life and readiness."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metrics.health import STALLED_SECONDS, HealthFacts, PartState, judge_health

WELL = HealthFacts(
    tick_age_seconds=0.2,
    zookeeper="connected",
    broker_connected=True,
    drain="ready",
    drain_reason="",
    shards=4,
    shards_led=2,
)


def part(health, name):
    return next(each for each in health.parts if each.part == name)


def test_all_well_is_ready():
    """Nothing wrong: alive, ready, every part ok."""
    health = judge_health(WELL)

    assert (health.live, health.ready, health.state) == (True, True, "ready")
    assert part(health, "cluster").reason == "leads 2 of 4 shards"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("loop", replace(WELL, tick_age_seconds=STALLED_SECONDS + 0.1)),
        ("cluster", replace(WELL, shards=0, shards_led=0)),
        ("broker", replace(WELL, broker_connected=False)),
        ("store", replace(WELL, store_reachable=False)),
    ],
)
def test_what_makes_a_daemon_not_ready(name, facts):
    """Exactly that part has failed, and it says why."""
    health = judge_health(facts)

    assert (health.ready, health.state) == (False, "not_ready")
    assert [name] == [each.part for each in health.parts if each.state is PartState.FAILED]
    assert part(health, name).reason


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("zookeeper", replace(WELL, zookeeper="suspended")),
        ("zookeeper", replace(WELL, zookeeper="lost")),
        ("drain", replace(WELL, drain="degraded", drain_reason="no answer for 60 s")),
        ("drain", replace(WELL, drain="starting")),
        ("drain", replace(WELL, drain="off")),
    ],
)
def test_what_only_degrades(name, facts):
    """Ready all the same, but it says so and why."""
    health = judge_health(facts)

    assert (health.ready, health.state) == (True, "degraded")
    assert [name] == [each.part for each in health.parts if each.state is PartState.DEGRADED]
    assert facts.drain_reason in part(health, name).reason


def test_only_the_loop_decides_about_life():
    """A daemon that is cut off from everything is not cured by a restart."""
    cut_off = replace(
        WELL, zookeeper="lost", broker_connected=False, store_reachable=False, drain="degraded", shards=0, shards_led=0
    )

    assert judge_health(cut_off).live
    assert judge_health(replace(WELL, tick_age_seconds=STALLED_SECONDS)).live
    assert not judge_health(replace(WELL, tick_age_seconds=STALLED_SECONDS + 0.1)).live


def test_standing_by_is_no_fault():
    """A daemon that leads nothing is ready to take over."""
    assert judge_health(replace(WELL, shards_led=0)).state == "ready"
