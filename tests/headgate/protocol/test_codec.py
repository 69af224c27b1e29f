"""What is wrong with a message surfaces when it is decoded."""

import msgspec
import pytest

from headgate.protocol.codec import Presence, encode, presence_topic, read_presence


def test_the_presence_of_a_client_has_its_address() -> None:
    presence = read_presence(presence_topic("c", "ada/client-1"), encode(Presence(client_id="client-1", online=True)))

    assert "ada/client-1" == presence.client_id


def test_the_presence_of_another_client_is_invalid() -> None:
    """The broker vouches for the topic only."""
    data = encode(Presence(client_id="client-2", online=False))

    with pytest.raises(msgspec.DecodeError, match="presence of client 'client-2' from 'ada/client-1'"):
        read_presence(presence_topic("c", "ada/client-1"), data)
