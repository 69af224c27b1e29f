"""What a daemon registers, and what others make of unknown data."""

import pytest

from controller.leadership.policy.instance_record import InstanceRecord, encode_record, read_record


def test_a_record_is_read_as_it_was_written() -> None:
    record = InstanceRecord(url="http://a:9464", version="1.2", settled=True, leaving=True, readiness="no_store")

    assert read_record(encode_record(record)) == record


@pytest.mark.parametrize(
    "data", [b"", b"here", b"[]", b'{"settled": "yes"}', b'{"readiness": "near"}', b'{"url": "\xff"}']
)
def test_other_data_is_a_daemon_that_gets_no_shards(data: bytes) -> None:
    assert read_record(data) == InstanceRecord()
    assert not InstanceRecord().settled


def test_a_record_of_another_version_may_have_other_fields() -> None:
    assert read_record(b'{"url": "http://a", "zone": "north"}') == InstanceRecord(url="http://a")
