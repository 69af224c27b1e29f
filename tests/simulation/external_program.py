"""An external topic beside the others: a source that headgate does not store, which grows and splits, and its two readers.

Its positions are offsets or opaque, and its segments have hashes or not. Before each listing, it imports some that are invalid.

The readers check what headgate promises to them: no segment is read before all of its parents were finished, and no checkpoint
is ahead of what was handled. At the end everything is read, but for segments whose retention ended before there was a
subscription. Once there is one, `tests.simulation.invariant_checker` checks that only what was read is pruned.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

from headgate import Admin
from headgate.client.connection import Client
from headgate.client.external_consumer import ExternalConsumer, GrantedSegment
from headgate.client.source_listing import ExternalLayout
from headgate.errors import HeadgateError, NoLeaderError, RequestRejectedError
from headgate.model.entries import Positions
from headgate.protocol.requests import SegmentImport
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.invalid_listings import HASH_BITS, Listing, invalid_imports, invalid_updates, split_hashes

TOPIC, SUBSCRIPTION = "clicks", "totals"
NEVER_IMPORTED = "clicks-2"
"""A topic of which only invalid listings are imported."""
READERS = 2
SPLITS = 3


@dataclass(slots=True)
class SourceSegment:
    """A segment of the source."""

    parents: tuple[str, ...] = ()
    hashes: tuple[str, str] | None = None
    records: int = 0
    handled: int = 0
    """Records that a reader has handled."""
    sealed: bool = False
    finished: bool = False
    """Whether a reader has reported its end. A segment with offsets needs no report."""

    def is_finished(self, positions: Positions) -> bool:
        """Whether it is sealed and read to its end."""
        return self.finished if positions == "opaque" else self.sealed and self.handled >= self.records

    def is_read(self, positions: Positions) -> bool:
        """Whether everything that it has is handled, and its end reported if it has one."""
        return self.is_finished(positions) or (not self.sealed and self.handled >= self.records)


class ExternalProgram:
    def __init__(
        self,
        rng: random.Random,
        new_client: Callable[[str], Client],
        log: Callable[[str, str], None],
        fail: Callable[[BaseException], None],
        acknowledged: Callable[[str], int],
        pruned: Callable[[str], bool],
    ) -> None:
        """``fail`` ends the run. ``acknowledged``: name of a segment → the position that the ledger has of it.

        ``pruned``: name of a segment that was imported → whether the ledger has pruned it.
        """
        self._rng = rng
        self._new_client = new_client
        self._log = log
        self._fail = fail
        self._acknowledged = acknowledged
        self._pruned = pruned
        self._clients = 0
        self._positions: Positions = rng.choice(["opaque", "offsets"])
        self._hash_bits = rng.choice([0, HASH_BITS])
        self._imported: dict[str, SegmentImport] = {}
        """The listing that was imported last."""
        self.refused = 0
        """Invalid listings that were refused."""
        self.segments: dict[str, SourceSegment] = {}

    @property
    def is_settled(self) -> bool:
        """Whether everything is read."""
        return not self._unread()

    def _unread(self) -> list[str]:
        return [
            label
            for label, segment in self.segments.items()
            if not segment.is_read(self._positions) and not self._is_pruned(label)
        ]

    def _is_pruned(self, label: str) -> bool:
        return label in self._imported and self._pruned(label)

    def check(self) -> None:
        """Raise BrokenPromiseError unless everything is read."""
        if left := self._unread():
            raise BrokenPromiseError(
                f"{SUBSCRIPTION}: segments {left} of the external topic were not read to their end"
            )

    async def _connected(self, stack: AsyncExitStack) -> Admin:
        """Connect as often as it takes: the broker may be away for longer than one attempt."""
        while True:
            with suppress(NoLeaderError):
                return await stack.enter_async_context(Admin(self._client("importer"), timeout_seconds=5))

    async def grow(self) -> None:
        """Let the source grow and split, and import each change before the source uses it; stop at a quota."""
        async with AsyncExitStack() as stack:
            admin = await self._connected(stack)
            for what, listing in invalid_imports(self._positions, self._hash_bits).items():
                await self._try_invalid(admin, NEVER_IMPORTED, what, listing)
            all_hashes = ("0", str((1 << self._hash_bits) - 1)) if self._hash_bits else None
            changed = {"a": SourceSegment(hashes=all_hashes)}
            for _ in range(SPLITS + 1):
                if not await self._import(admin, changed):
                    return
                self.segments = changed
                for segment in changed.values():
                    segment.records += 0 if segment.sealed else self._rng.randrange(8)
                await asyncio.sleep(self._rng.uniform(0, 10))
                changed = self._split(changed)
                if self._rng.random() < 1 / 3:
                    changed = self._split(changed)

    def _split(self, segments: dict[str, SourceSegment]) -> dict[str, SourceSegment]:
        has_children = {label for segment in segments.values() for label in segment.parents}
        parent = self._rng.choice([label for label in segments if label not in has_children])
        ranges = split_hashes(segments[parent].hashes, self._rng)
        return segments | {
            f"{parent}{end}": SourceSegment((parent,), hashes) for end, hashes in zip("lr", ranges, strict=False)
        }

    def _listing(self, segments: dict[str, SourceSegment]) -> dict[str, SegmentImport]:
        """Return the listing of these segments, in which every parent is sealed."""
        parents = {label for segment in segments.values() for label in segment.parents}
        opaque = self._positions == "opaque"
        return {
            label: SegmentImport(
                segment=label,
                parents=list(segment.parents),
                hashes=segment.hashes,
                sealed=label in parents,
                end_offset=segment.records if label in parents and not opaque else None,
            )
            for label, segment in segments.items()
        }

    async def _import(self, admin: Admin, changed: dict[str, SourceSegment]) -> bool:
        """Import a layout, after some invalid ones; return whether the quota permits it."""
        listing = self._listing(changed)
        if self._imported:
            newest = listing[[*changed][-1]].parents[0]
            acknowledged = 0 if self._positions == "opaque" or changed[newest].sealed else self._acknowledged(newest)
            invalid = invalid_updates(list(listing.values()), self._imported, acknowledged)
            for what in self._rng.sample(sorted(invalid), min(3, len(invalid))):
                await self._try_invalid(admin, TOPIC, what, invalid[what])
        while True:
            try:
                await admin.import_topic(TOPIC, self._layout(list(listing.values())))
            except RequestRejectedError as error:
                self._log("importer", f"is refused: {error}")
                if error.verdict == "invalid":
                    self._fail(BrokenPromiseError(f"a valid listing was refused: {error}"))
                return False
            except HeadgateError as error:
                self._log("importer", f"failed: {error}")
                await asyncio.sleep(1)
            else:
                self._imported = listing
                for label, segment in listing.items():
                    changed[label].sealed = segment.sealed
                self._log("importer", f"imported {', '.join(changed)}")
                return True

    async def _try_invalid(self, admin: Admin, topic: str, what: str, listing: Listing) -> None:
        """Import a listing that must be refused."""
        try:
            await admin.import_topic(topic, self._layout(listing))
        except HeadgateError as error:
            self._log("importer", f"invalid, {what}: {error}")
            self.refused += isinstance(error, RequestRejectedError) and error.verdict == "invalid"
        else:
            self._fail(BrokenPromiseError(f"an invalid listing was imported: {what}"))

    def _layout(self, listing: Listing) -> ExternalLayout:
        return ExternalLayout(listing, positions=self._positions, hash_bits=self._hash_bits)

    async def read(self, name: str) -> None:
        """Run a reader until cancelled; it registers again after it was fenced."""
        while True:
            with suppress(HeadgateError):
                client = self._client(name)
                async with ExternalConsumer(client, topic=TOPIC, subscription=SUBSCRIPTION, name=name) as consumer:
                    await consumer.run(self._read_segment)
            await asyncio.sleep(1)

    async def _read_segment(self, granted: GrantedSegment) -> None:
        segment = self.segments[granted.label]
        if early := [
            label
            for label in segment.parents
            if not self.segments[label].is_finished(self._positions) and not self._is_pruned(label)
        ]:
            self._fail(BrokenPromiseError(f"external segment {granted.label} is read before its parents {early}"))
        opaque = self._positions == "opaque"
        position = int(granted.checkpoint or 0) if opaque else granted.start_offset
        if position > segment.handled:
            self._fail(BrokenPromiseError(f"{granted.label}: checkpoint {position} is ahead of {segment.handled}"))
        while True:
            await asyncio.sleep(self._rng.uniform(0, 1))
            if position < segment.records:
                position += 1
                segment.handled = max(segment.handled, position)
                await granted.acknowledge(checkpoint=str(position), end_offset=None if opaque else position)
            elif segment.sealed:
                segment.finished = True
                await granted.finish(end_offset=None if opaque else segment.records)
                return

    def _client(self, name: str) -> Client:
        self._clients += 1
        return self._new_client(f"{name}-{self._clients}")
