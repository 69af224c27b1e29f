"""MQTT topics and ids that test_protocol_document.py does not compare with the document."""

from headgate.protocol import codec as t


def test_an_address_is_a_user_and_a_client_id() -> None:
    address = t.client_address("ada", "client-1")

    assert ("ada", "client-1") == (t.user_of(address), t.client_of(address))


def test_filters_of_presences_and_publications_match_those_of_all_clients() -> None:
    assert "headgate/c/clients/+/+/presence" == t.presence_filter("c")
    assert ("headgate/c/publish/#", "headgate/c/devices/+/publish/#") == t.all_publications_filters("c")


def test_the_session_of_a_shard_for_devices_has_the_same_id_in_each_term() -> None:
    assert "headgate:c:shard:3:topic:7:000000000000002a" == t.device_session_id("c", 3, 7, 42)
