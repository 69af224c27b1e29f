"""The errors that headgate raises on purpose.

Everything here is raised by an adapter or at the edge of the program and caught by name; a bug is an assertion
or an ordinary exception, and ends the reign or the process. Each error's text says what was wrong, where, and
what to do.
"""

from __future__ import annotations


class HeadgateError(Exception):
    """Root of all errors that headgate raises on purpose."""


class ConfigError(HeadgateError):
    """A setting is missing, unknown or senseless; the text names the setting and the file."""


class InvalidNameError(HeadgateError):
    """A topic, subscription, consumer or cluster name that cannot be used; the text gives the rule."""


class LayoutError(HeadgateError):
    """A split, merge or prune that the layout does not allow; the text gives the valid choices."""


class StoreError(HeadgateError):
    """The object store could not do what was asked. The subclasses say how much is known."""


class ObjectExistsError(StoreError):
    """Put-if-absent lost: somebody else created the object. In the ledger this means: another reign has begun."""


class ObjectMissingError(StoreError):
    """There is no such object."""


class StoreUnavailableError(StoreError):
    """The store could not be reached; certainly nothing was written."""


class OutcomeUnknownError(StoreError):
    """A write may or may not have happened. In the ledger this ends the reign: the next one reads the truth."""


class ChunkError(HeadgateError):
    """An object in the ledger is not a chunk of ours, is cut short, or stands under the wrong number."""


class LedgerFormatError(ChunkError):
    """An object in the ledger was written by another version; the text names it, its format, and what to do."""


class ProtocolError(HeadgateError):
    """The cluster speaks another version of the protocol; the text names both."""


class TransportError(HeadgateError):
    """The broker is out of reach, or rejected us."""


class RequestRejectedError(HeadgateError):
    """The leader rejected a request for good.

    Attributes:
        verdict: the row of the verdict table, e.g. ``invalid`` or ``fenced`` (see
        ``headgate.protocol.messages.Verdict``).

    """

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


class FencedError(RequestRejectedError):
    """A newer incarnation has taken this producer's or consumer's place; this one must stop."""


class DeliveryFailedError(HeadgateError):
    """The record was certainly not stored."""


class DeliveryUnknownError(HeadgateError):
    """The deadline passed while the batch was in flight: it may or may not have been stored."""


class NoLeaderError(HeadgateError):
    """No leader answered in time."""
