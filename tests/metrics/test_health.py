"""The judgement on life and readiness."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metrics.health import STALLED_SECONDS, ComponentState, HealthFacts, judge_health

HEALTHY_FACTS = HealthFacts(
    tick_age_seconds=0.2,
    zookeeper="connected",
    broker_connected=True,
    drain="ready",
    drain_reason="",
    shards=4,
    shards_led=2,
)


def part(health, name):
    return next(each for each in health.components if each.name == name)


def test_all_well_is_ready():
    """Nothing wrong: alive, ready, every part ok."""
    health = judge_health(HEALTHY_FACTS)

    assert (health.live, health.ready, health.state) == (True, True, "ready")
    assert part(health, "cluster").reason == "leads 2 of 4 shards"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("loop", replace(HEALTHY_FACTS, tick_age_seconds=STALLED_SECONDS + 0.1)),
        ("cluster", replace(HEALTHY_FACTS, shards=0, shards_led=0)),
        ("broker", replace(HEALTHY_FACTS, broker_connected=False)),
        ("store", replace(HEALTHY_FACTS, store_reachable=False)),
    ],
)
def test_what_makes_a_daemon_not_ready(name, facts):
    """Exactly that part has failed, and it says why."""
    health = judge_health(facts)

    assert (health.ready, health.state) == (False, "not_ready")
    assert [name] == [each.name for each in health.components if each.state is ComponentState.FAILED]
    assert part(health, name).reason


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("zookeeper", replace(HEALTHY_FACTS, zookeeper="suspended")),
        ("zookeeper", replace(HEALTHY_FACTS, zookeeper="lost")),
        ("drain", replace(HEALTHY_FACTS, drain="degraded", drain_reason="no answer for 60 s")),
        ("drain", replace(HEALTHY_FACTS, drain="starting")),
        ("drain", replace(HEALTHY_FACTS, drain="off")),
    ],
)
def test_what_only_degrades(name, facts):
    """Ready all the same, but it says so and why."""
    health = judge_health(facts)

    assert (health.ready, health.state) == (True, "degraded")
    assert [name] == [each.name for each in health.components if each.state is ComponentState.DEGRADED]
    assert facts.drain_reason in part(health, name).reason


def test_only_the_loop_decides_about_life():
    """A daemon that is cut off from everything is not cured by a restart."""
    cut_off = replace(
        HEALTHY_FACTS,
        zookeeper="lost",
        broker_connected=False,
        store_reachable=False,
        drain="degraded",
        shards=0,
        shards_led=0,
    )

    assert judge_health(cut_off).live
    assert judge_health(replace(HEALTHY_FACTS, tick_age_seconds=STALLED_SECONDS)).live
    assert not judge_health(replace(HEALTHY_FACTS, tick_age_seconds=STALLED_SECONDS + 0.1)).live


def test_standing_by_is_no_fault():
    """A daemon that leads nothing is ready to take over."""
    assert judge_health(replace(HEALTHY_FACTS, shards_led=0)).state == "ready"
