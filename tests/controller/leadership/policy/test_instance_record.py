"""What a daemon registers, and what others make of unknown data."""

import pytest

from controller.connections.store import FAILING_INTERVAL_SECONDS
from controller.leader.shard_spreader import VIEW_INTERVAL_SECONDS
from controller.leadership.policy import instance_record
from headgate.storage.object_store import PROBE_TIMEOUT_SECONDS
from headgate.transport.connection_options import RECONNECT_BACKOFF, MqttTiming


def test_a_record_is_read_as_it_was_written() -> None:
    record = instance_record.InstanceRecord(
        url="http://a:9464", version="1.2", settled=True, leaving=True, readiness="no_store"
    )

    assert instance_record.read_record(instance_record.encode_record(record)) == record


@pytest.mark.parametrize(
    "data", [b"", b"here", b"[]", b'{"settled": "yes"}', b'{"readiness": "near"}', b'{"url": "\xff"}']
)
def test_other_data_is_a_daemon_that_gets_no_shards(data: bytes) -> None:
    assert instance_record.read_record(data) == instance_record.InstanceRecord()
    assert not instance_record.InstanceRecord().settled


def test_a_record_of_another_version_may_have_other_fields() -> None:
    assert instance_record.read_record(b'{"url": "http://a", "zone": "north"}') == instance_record.InstanceRecord(
        url="http://a"
    )


WORKS = (True, 1000.0)


@pytest.mark.parametrize(
    ("broker", "store", "expected"),
    [
        (WORKS, WORKS, "ready"),
        ((False, 0.0), WORKS, "doubtful"),
        ((False, instance_record.BROKER_LOST_SECONDS - 0.1), WORKS, "doubtful"),
        ((False, instance_record.BROKER_LOST_SECONDS), WORKS, "no_broker"),
        ((True, 0.0), WORKS, "doubtful"),
        ((True, instance_record.STABLE_SECONDS - 0.1), WORKS, "doubtful"),
        ((True, instance_record.STABLE_SECONDS), WORKS, "ready"),
        (WORKS, (False, 0.0), "doubtful"),
        (WORKS, (False, instance_record.STORE_LOST_SECONDS - 0.1), "doubtful"),
        (WORKS, (False, instance_record.STORE_LOST_SECONDS), "no_store"),
        (WORKS, (True, instance_record.STABLE_SECONDS - 0.1), "doubtful"),
        (WORKS, (True, instance_record.STABLE_SECONDS), "ready"),
        ((True, 0.0), (False, instance_record.STORE_LOST_SECONDS), "no_store"),
        ((False, 0.0), (False, instance_record.STORE_LOST_SECONDS), "no_store"),
    ],
)
def test_a_server_counts_when_it_lasts_and_so_does_its_loss(
    broker: tuple[bool, float], store: tuple[bool, float], expected: str
) -> None:
    now = 2000.0

    servers = instance_record.Servers(
        *(instance_record.Contact(works, now - seconds) for works, seconds in (broker, store))
    )
    assert expected == instance_record.readiness(servers, now)


def test_a_loss_lasts_from_the_first_failure_to_the_next_success() -> None:
    contact = instance_record.Contact(works=True, since=0.0)
    for works, now, since in [(True, 1.0, 0.0), (False, 2.0, 2.0), (False, 3.0, 2.0), (True, 4.0, 4.0)]:
        contact.note(works=works, now=now)
        assert (contact.works, contact.since) == (works, since)


def test_no_daemon_is_ready_after_a_restart_of_the_broker_before_all_have_tried() -> None:
    pause_seconds = RECONNECT_BACKOFF.longest_seconds

    assert pause_seconds < instance_record.BROKER_LOST_SECONDS
    assert MqttTiming().connect_timeout_seconds + pause_seconds < instance_record.STABLE_SECONDS


def test_a_store_that_fails_for_all_is_known_to_all_before_one_gives_its_shards_away() -> None:
    registered_and_seen_seconds = 2 * VIEW_INTERVAL_SECONDS

    tried_seconds = FAILING_INTERVAL_SECONDS + PROBE_TIMEOUT_SECONDS
    assert 2 * registered_and_seen_seconds + tried_seconds < instance_record.STORE_LOST_SECONDS
