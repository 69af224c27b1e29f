"""The errors that headgate raises on purpose. Each text says what is wrong, where, and what to do.

A bug is an assertion or an ordinary exception, and ends the leader's term or the process.
"""

from collections.abc import Mapping, Sequence


class HeadgateError(Exception):
    """Base of all errors that headgate raises on purpose."""


class ConfigError(HeadgateError):
    """A setting is missing, unknown or invalid. The text names the setting, and its file if it has one."""


class InvalidNameError(HeadgateError):
    """The name of a topic, subscription, consumer or cluster is invalid. The text gives the rule."""


class LayoutError(HeadgateError):
    """The layout does not allow a split, merge or prune. The text gives the valid choices."""


class StoreError(HeadgateError):
    """The object store failed. The subclasses say how much is known."""


class ObjectExistsError(StoreError):
    """Put-if-absent found an object. In the ledger this means that another term has begun."""


class ObjectMissingError(StoreError):
    """The object does not exist."""


class StoreUnavailableError(StoreError):
    """The store could not be reached. Nothing was written."""


class OutcomeUnknownError(StoreError):
    """A write may or may not have happened. In the ledger this ends the term; the next one reads the outcome."""


class NotDurableError(OutcomeUnknownError):
    """A write happened, and the disk failed to make it durable. Reading it back proves nothing: the cache answers."""


class LedgerError(HeadgateError):
    """An object of the ledger is damaged, foreign, missing, or not the one that its name states. The text names it.

    Every object that cannot be decoded raises this error: chunks, snapshots, manifests, compacted objects and
    published results.
    """


class ForeignObjectError(LedgerError):
    """An object has the name of one of the ledger, and is no file, or too large. It was not read. The text names it."""


class LedgerFormatError(LedgerError):
    """An object of the ledger was written by another version. The text names it, its format, and what to do."""


class ProtocolError(HeadgateError):
    """The cluster runs another version of the protocol. The text names both, or the field that differs."""


class TransportError(HeadgateError):
    """The broker cannot be reached, or rejected the connection."""


class RequestRejectedError(HeadgateError):
    """The leader rejected a request for good.

    Attributes:
        verdict: the row of the verdict table, e.g. ``invalid`` or ``fenced``; see `headgate.protocol.replies.Verdict`.
    """

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


class FencedError(RequestRejectedError):
    """A newer incarnation has replaced this producer or consumer, or a command has evicted it. This one must stop."""


class ForgottenError(FencedError):
    """The shard no longer knows this id of a named producer. This one must stop.

    The producer was deleted, with its source position: a new one of that name starts from the
    beginning. Or, after two billion openings, a later one has another id and continues.
    """


class PositionOutOfRangeError(RequestRejectedError):
    """A segment or an offset does not exist: going on would skip records.

    A CHECKPOINT consumer stored the position itself, or `headgate.dataset` was asked for it. The topic was
    deleted and created again, or a segment was pruned before it was read to its end. The text names the
    topic, the segment, the records, and the first ones that are kept. Open a consumer without these
    positions, or one that continues behind what is gone (``behind="continue"``).
    """


class OtherHistoryError(RequestRejectedError):
    """This consumer has read records that the ledger of the leader does not have.

    An older ledger was put back while it ran, or it reads another ledger than the daemons write. It
    delivers and acknowledges nothing more. Start the program again: it continues where the present
    ledger is. A CHECKPOINT consumer has to start without its positions.
    """


_ERRORS: dict[str, type[RequestRejectedError]] = {
    "fenced": FencedError,
    "forgotten": ForgottenError,
    "out_of_range": PositionOutOfRangeError,
    "other_history": OtherHistoryError,
}


def rejection(verdict: str, reason: str) -> RequestRejectedError:
    """Return the error of a request that was rejected for good with ``verdict``."""
    return _ERRORS.get(verdict, RequestRejectedError)(verdict, reason)


class AcknowledgementsNotStoredError(HeadgateError):
    """Acknowledgements of a consumer are not stored. The records are delivered again, to this or another consumer.

    Attributes:
        offsets: segment → (first, end) of the offsets, ``end`` not included. Empty for an external
            segment of which only a checkpoint is not stored.
    """

    def __init__(self, reason: str, offsets: Mapping[int, tuple[tuple[int, int], ...]]) -> None:
        super().__init__(reason)
        self.offsets = dict(offsets)


class HandlerFailedError(HeadgateError):
    """The handler of `Consumer.run` failed for the last time; ``__cause__`` is what it raised.

    ``records`` are those that it was called with. They are not acknowledged.
    """

    def __init__(self, reason: str, records: Sequence[object]) -> None:
        super().__init__(reason)
        self.records = list(records)


class DeliveryFailedError(HeadgateError):
    """The record was certainly not stored."""


class DeliveryUnknownError(HeadgateError):
    """The delivery timeout expired while the record was in flight: it may or may not be stored."""


class NoLeaderError(HeadgateError):
    """No leader answered in time. A command that ends with it was not executed, and never will be."""


class CommandUnknownError(NoLeaderError):
    """No leader answered a command in time, although it was sent: it may or may not have been executed.

    No leader begins it any more, so what a leader shows from now on is the outcome.
    """
