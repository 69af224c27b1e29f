"""Liveness and readiness."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from headgate.views.cluster import ComponentState
from metrics import events
from metrics.health import STALLED_SECONDS, judge_health
from metrics.instruments import Instruments
from tests.support.samples.status_documents import HEALTHY_FACTS


def component(health, name):
    return next(each for each in health.components if each.component == name)


def test_a_daemon_without_faults_is_live_and_ready():
    health = judge_health(replace(HEALTHY_FACTS, ledger_ahead_seconds=9.0, descriptors=(921, 1024)))

    assert (health.live, health.ready, health.state) == (True, True, "ready")
    assert component(health, "cluster").reason == "leads 2 of 4 shards"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("loop", replace(HEALTHY_FACTS, tick_age_seconds=STALLED_SECONDS + 0.1)),
        ("cluster", replace(HEALTHY_FACTS, shards=0, shards_led=0)),
        ("broker", replace(HEALTHY_FACTS, broker_connected=False)),
        ("store", replace(HEALTHY_FACTS, store_problems={"create": "no space left"})),
        ("cluster store", replace(HEALTHY_FACTS, shards=0, shards_led=0, store_problems={"read": "no such bucket"})),
    ],
)
def test_a_failed_component_makes_a_daemon_not_ready(name, facts):
    """Exactly that component has failed, with a reason; two, if the ledger is needed to join."""
    health = judge_health(facts)

    assert (health.ready, health.state) == (False, "not_ready")
    assert name.split() == [each.component for each in health.components if each.state is ComponentState.FAILED]
    assert all(component(health, each).reason for each in name.split())


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("zookeeper", replace(HEALTHY_FACTS, zookeeper="suspended")),
        ("zookeeper", replace(HEALTHY_FACTS, zookeeper="lost")),
        ("zookeeper", replace(HEALTHY_FACTS, zookeeper_problem="node /headgate is closed")),
        ("drain", replace(HEALTHY_FACTS, drain="degraded", drain_reason="no answer for 60 s")),
        ("drain", replace(HEALTHY_FACTS, drain="starting")),
        ("drain", replace(HEALTHY_FACTS, drain="off")),
        ("ledger", replace(HEALTHY_FACTS, unreadable={3: "chunks/x is damaged"})),
        ("ledger", replace(HEALTHY_FACTS, contested=[0, 3])),
        ("store", replace(HEALTHY_FACTS, store_problems={"read": "shard 3 hangs"})),
        ("clock", replace(HEALTHY_FACTS, clock_held_seconds=-3600.0)),
        ("clock", replace(HEALTHY_FACTS, ledger_ahead_seconds=11.0)),
        ("descriptors", replace(HEALTHY_FACTS, descriptors=(922, 1024))),
    ],
)
def test_a_degraded_component_leaves_a_daemon_ready(name, facts):
    """The state and the component say so, with a reason."""
    health = judge_health(facts)

    assert (health.ready, health.state) == (True, "degraded")
    assert [name] == [each.component for each in health.components if each.state is ComponentState.DEGRADED]
    assert facts.drain_reason in component(health, name).reason
    assert name != "drain" or component(health, name).reason.rpartition("; ")[2].startswith("see the log of Spark")
    assert not component(health, name).reason.startswith("degraded"), "the state is shown before it"


def test_a_drain_service_that_a_standby_never_asked_does_not_degrade_it():
    standby = replace(HEALTHY_FACTS, shards_led=0, drain="off", drain_reason="the drain service has not replied yet")

    assert [judge_health(each).state for each in (standby, replace(HEALTHY_FACTS, shards_led=0))] == ["ready"] * 2
    assert judge_health(replace(standby, drain="degraded")).state == "degraded"


def test_every_unreadable_shard_is_named_with_its_object():
    health = judge_health(replace(HEALTHY_FACTS, unreadable={3: "chunks/x is damaged", 1: "chunks/y is missing"}))

    assert component(health, "ledger").reason.startswith("shard 1: chunks/y is missing; shard 3: chunks/x is damaged; ")


def test_shards_without_a_leader_degrade_and_are_named_up_to_a_limit():
    without = {shard: f"reason {shard}" for shard in range(12)}
    health = judge_health(replace(HEALTHY_FACTS, without_leader=without))

    assert (health.ready, health.state) == (True, "degraded")
    reason = component(health, "cluster").reason
    assert "without a leader: shard 0 (reason 0), shard 1" in reason
    assert reason.endswith("shard 9 (reason 9), … and 2 more")
    assert health.summary == f"degraded: cluster: {reason}"
    assert judge_health(replace(HEALTHY_FACTS, broker_connected=False)).summary.startswith(
        "not_ready: cluster: leads 2 of"
    )


def test_liveness_depends_on_the_loop_alone():
    """A restart does not help a daemon that is disconnected from everything."""
    disconnected = replace(
        HEALTHY_FACTS,
        zookeeper="lost",
        broker_connected=False,
        store_problems={"create": "no space left"},
        drain="degraded",
        shards=0,
        shards_led=0,
    )

    assert judge_health(disconnected).live
    assert judge_health(replace(HEALTHY_FACTS, tick_age_seconds=STALLED_SECONDS)).live
    assert not judge_health(replace(HEALTHY_FACTS, tick_age_seconds=STALLED_SECONDS + 0.1)).live


def test_a_store_that_refuses_writes_is_named_although_reads_succeed():
    """A folder without hard links was "ok", because a read cleared the failed write, and no shard had a leader."""
    registry = CollectorRegistry()
    instruments = Instruments(registry)
    instruments.observe(events.StoreOperationFailed(operation="create", reason="no hard links"))
    instruments.observe(events.StoreOperationSucceeded(operation="read"))
    health = judge_health(replace(HEALTHY_FACTS, store_problems=instruments.store_problems))

    assert not health.ready
    assert component(health, "store").reason.startswith("create failed: no hard links: this daemon cannot lead")
    instruments.observe(events.StoreOperationSucceeded(operation="create"))
    assert {} == instruments.store_problems
