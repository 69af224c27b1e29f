"""Decide what a consumer does with what its leader tells it to read.

`Registered` lists all that it holds; `AssignmentChanged` tells differences. Both may be late, doubled, lost or
overtaken. Pure: messages in, `Changes` out; who reads and confirms is headgate.client.consumer.

What is held is named by (segment, generation): of a segment that is shared one consumer may hold several shares. For
any key bucket generations only rise, and it has one holder at a time.

The rules, first match wins:

1. A message of a leader epoch below the highest seen is ignored, also after a reconnection.
2. What is held at the generation that is listed goes on, undisturbed: a change of leader costs nothing.
3. What `Registered` does not list is dropped: somebody else may hold it already. Not so what is being finished, which
   is never listed, unless something listed takes its place, nor what was pushed after we had asked: the list may be
   older than that. Should it be gone all the same, the next heartbeat says that we hold it, and brings a final
   revocation.
4. A grant is ignored if one of its buckets was given up, or is held, at its generation or a later one. If one of its
   buckets is held at an earlier one, that is dropped: it has been fenced.
5. A revocation of what is held: finish it, once. If it is final, stop at once.
6. A revocation of what never arrived: nothing was delivered, so it is confirmed at once. The leader waits for that.
   One that comes again after that is confirmed again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headgate.model.bucket_ranges import SegmentSlice, overlaps, slice_of
from headgate.protocol.messages import AssignmentChanged, Grant, Registered, Revocation

HeldKey = tuple[int, int]
"""(segment, generation)."""
MAX_FENCED_REMEMBERED = 1000
"""Final revocations of what never arrived; their grants can be no later than a broker keeps a message."""


@dataclass(slots=True)
class Changes:
    """What to do now, in this order."""

    stop: list[HeldKey] = field(default_factory=list)
    """What to stop at once, without a word."""
    finish: list[Revocation] = field(default_factory=list)
    """What to finish and confirm."""
    confirm: list[Revocation] = field(default_factory=list)
    """What to confirm at once."""
    start: list[Grant] = field(default_factory=list)


class HeldSegments:
    """What one consumer holds, as far as it has been told."""

    def __init__(self) -> None:
        self.held: dict[HeldKey, Grant] = {}
        self.revoking: set[HeldKey] = set()
        """What is being finished."""
        self._highest_epoch = 0
        self._granted_since_registration: set[HeldKey] = set()
        self._by_segment: dict[int, dict[int, SegmentSlice]] = {}
        """Segment → generation → what of it is held."""
        self._released_slices: dict[int, dict[SegmentSlice, int]] = {}
        """Segment → what was held of it → highest generation given up."""
        self._fenced: deque[HeldKey] = deque(maxlen=MAX_FENCED_REMEMBERED)

    def registration_requested(self) -> None:
        """Note that the list is being asked for."""
        self._granted_since_registration.clear()

    def registered(self, leader_epoch: int, reply: Registered) -> Changes:
        """Take the complete list."""
        changes = Changes()
        if not self._is_current(leader_epoch):
            return changes
        listed = {_key(grant) for grant in reply.grants}
        for key in list(self.held):
            if key not in listed and key not in self.revoking and key not in self._granted_since_registration:
                self._drop(key, changes)
        for grant in reply.grants:
            self._start_unless_released(grant, changes)
        return changes

    def changed(self, push: AssignmentChanged) -> Changes:
        """Take differences."""
        changes = Changes()
        if not self._is_current(push.leader_epoch):
            return changes
        for revocation in push.revoked:
            self._revoke(revocation, changes)
        for grant in push.granted:
            self._granted_since_registration.add(_key(grant))
            self._start_unless_released(grant, changes)
        return changes

    def confirmed(self, revocation: Revocation) -> None:
        """Learn that the leader has taken back what was revoked."""
        key = _key(revocation)
        self._record_release(revocation.segment, _slice_of(self.held.get(key, revocation)), revocation.generation)
        if key in self.held:
            self._forget(key)

    def drop_all(self) -> Changes:
        """Hold nothing any more: this consumer was evicted."""
        changes = Changes()
        for key in list(self.held):
            self._drop(key, changes)
        return changes

    def _is_current(self, leader_epoch: int) -> bool:
        if leader_epoch < self._highest_epoch:
            return False
        self._highest_epoch = leader_epoch
        return True

    def _start_unless_released(self, grant: Grant, changes: Changes) -> None:
        """Rule 4."""
        segment_slice, generation = _slice_of(grant), grant.generation
        overlapping = self._overlapping_generations(segment_slice, grant.segment)
        if _key(grant) in self._fenced or self._highest_released_generation(grant.segment, segment_slice) >= generation:
            return
        if any(other >= generation for other in overlapping):
            return
        for earlier in overlapping:
            self._drop((grant.segment, earlier), changes)
        self.held[_key(grant)] = grant
        self._by_segment.setdefault(grant.segment, {})[generation] = segment_slice
        changes.start.append(grant)

    def _revoke(self, revocation: Revocation, changes: Changes) -> None:
        segment, generation, key = revocation.segment, revocation.generation, _key(revocation)
        if key in self.held:
            if revocation.final:
                self._record_release(segment, _slice_of(self.held[key]), generation)
                self._drop(key, changes)
            elif key not in self.revoking:
                self.revoking.add(key)
                changes.finish.append(revocation)
            return
        if revocation.final:
            self._fenced.append(key)
            return
        segment_slice = _slice_of(revocation)
        overlapping = self._overlapping_generations(segment_slice, segment)
        if generation < self._highest_released_generation(segment, segment_slice) or any(
            other > generation for other in overlapping
        ):
            return
        for earlier in overlapping:
            self._drop((segment, earlier), changes)
        self._record_release(segment, segment_slice, generation)
        changes.confirm.append(revocation)

    def _overlapping_generations(self, segment_slice: SegmentSlice, segment: int) -> list[int]:
        """Return the generations of what is held and has a bucket in common with ``segment_slice``."""
        return [
            generation
            for generation, held in self._by_segment.get(segment, {}).items()
            if overlaps(held, segment_slice)
        ]

    def _highest_released_generation(self, segment: int, segment_slice: SegmentSlice) -> int:
        released = self._released_slices.get(segment, {})
        return max((generation for other, generation in released.items() if overlaps(other, segment_slice)), default=-1)

    def _record_release(self, segment: int, segment_slice: SegmentSlice, generation: int) -> None:
        released = self._released_slices.setdefault(segment, {})
        released[segment_slice] = max(released.get(segment_slice, -1), generation)

    def _drop(self, key: HeldKey, changes: Changes) -> None:
        self._forget(key)
        changes.stop.append(key)

    def _forget(self, key: HeldKey) -> None:
        del self.held[key], self._by_segment[key[0]][key[1]]
        self.revoking.discard(key)


def _key(named: Grant | Revocation) -> HeldKey:
    return named.segment, named.generation


def _slice_of(named: Grant | Revocation) -> SegmentSlice:
    return slice_of(named.segment, named.first_bucket, named.end_bucket)
