"""What a broker accepts from its clients, as it says itself when a client connects with MQTT 5. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProperties:
    """What CONNACK says; a property that is absent has the standard's default."""

    answer_seconds: float
    """From the beginning of the connection to the answer."""
    maximum_packet_bytes: int | None = None
    """None: no limit."""
    maximum_qos: int = 2
    retains: bool = True
    wildcards: bool = True
