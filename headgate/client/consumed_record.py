"""A record as a consumer delivers it to its program."""

import msgspec

from headgate.model.headers import Headers
from headgate.model.identifiers import Generation, Offset, SegmentId


class ConsumedRecord(msgspec.Struct, frozen=True, gc=False):
    """One record as it was delivered."""

    topic: str
    segment: SegmentId
    offset: Offset
    key: bytes
    value: bytes
    timestamp_ms: int
    """Milliseconds since 1970, as the producer set it."""
    generation: Generation
    """Generation of the grant under which the record was read. An acknowledgement refers to it."""
    headers: Headers = ()
    """(name, value) pairs in the producer's order; a name may occur more than once."""
    delivery_count: int = 1
    """QUEUE: one more than the number of its deliveries that have failed. An acknowledgement refers to it."""
    parked_number: int = 0
    """STREAM: its number among the parked records of its key, which is being resumed; 0: it was not parked. Its segment
    is the one that has the key now, its offset that in the dead-letter topic, and its headers say where it is from."""
