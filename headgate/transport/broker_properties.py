"""What a broker accepts from its clients, as it says itself when a client connects with MQTT 5. Pure."""

from dataclasses import dataclass
from typing import Final

from headgate.transport.port import MAX_PAYLOAD_BYTES

LARGEST_PACKET_BYTES: Final = MAX_PAYLOAD_BYTES + 1024
"""The largest packet of headgate, with its topic and header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProperties:
    """What CONNACK says; a property that is absent has the standard's default."""

    answer_seconds: float = 0.0
    """From the beginning of the connection to the answer; 0: not measured."""
    maximum_packet_bytes: int | None = None
    """None: no limit."""
    maximum_qos: int = 2
    retains: bool = True
    wildcards: bool = True
