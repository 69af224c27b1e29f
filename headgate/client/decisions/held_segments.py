"""Decide what a consumer does with the leader's messages about its segments. Pure.

`Registered` lists everything that the consumer holds; `AssignmentChanged` reports differences. Both can be late,
doubled, lost or reordered. A holding is identified by (segment, generation), because a consumer can hold several bucket
ranges of a segment. For any key bucket generations only rise, and it has one holder at a time.

The rules, first match wins:

1. A message with a leader epoch below the highest one seen is ignored, also after a reconnection.
2. A holding that is listed at its generation continues undisturbed, also under a new leader.
3. A holding that `Registered` does not list is dropped: another consumer may hold it. One that is being finished is
   never listed, and stays unless a listed one overlaps it. One that was pushed after the registration was sent stays,
   because the list may be older. If it is gone nevertheless, the leader answers the next heartbeat with a final
   revocation. One that was known before the registration was sent is gone: a late copy of its grant begins nothing.
4. A grant is ignored if one of its buckets was released, or is held, at its generation or a later
   one. A holding of one of its buckets at an earlier generation was fenced and is dropped.
5. A revocation of a holding: finish it, once. If the revocation is final, stop at once.
6. A revocation of a grant that never arrived is confirmed every time: the leader waits for it.
7. Of pushes before the first `Registered`, or in its turn, revocations count after it, because another consumer waits
   for them. Grants do not: the list may be newer. It may be older, too, so if it lacks one of them, the consumer asks
   with a heartbeat at once: the leader pushes again what is missing.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from headgate.model.layout import SegmentSlice, overlaps, slice_of
from headgate.protocol.replies import AssignmentChanged, Grant, Registered, Revocation

CONFIRMATION_SECONDS: Final = 10.0
"""Kept free of the leader's limit for a revocation, for the last acknowledgements and the confirmation."""

HeldKey = tuple[int, int]
MAX_EARLY = 1000
"""Revocations, and grants, before the first `Registered`. The leader repeats others with a heartbeat."""
MAX_FENCED_REMEMBERED = 1000
"""Final revocations of grants that never arrived. A broker does not delay such a grant any longer."""


@dataclass(slots=True)
class Changes:
    stop: list[HeldKey] = field(default_factory=list)
    finish: list[Revocation] = field(default_factory=list)
    confirm: list[Revocation] = field(default_factory=list)
    start: list[Grant] = field(default_factory=list)


class HeldSegments:
    def __init__(self) -> None:
        self.held: dict[HeldKey, Grant] = {}
        self.revoking: set[HeldKey] = set()
        self.may_lack_grants = False
        """A heartbeat is due at once (rule 7)."""
        self._highest_epoch = 0
        self._early_grants: set[tuple[int, HeldKey]] = set()
        """(leader epoch, holding) before the first list."""
        self._early_revocations: list[tuple[int, Revocation]] | None = []
        """(leader epoch, revocation) before the first list; None: there was one."""
        self._granted_since_registration: set[HeldKey] = set()
        self._known_before_registration: dict[HeldKey, Grant] = {}
        """Also those that `drop_all` has dropped."""
        self._by_segment: dict[int, dict[int, SegmentSlice]] = {}
        self._released_slices: dict[int, dict[SegmentSlice, int]] = {}
        """Segment → slice that was held → highest generation released."""
        self._fenced: deque[HeldKey] = deque(maxlen=MAX_FENCED_REMEMBERED)

    def registration_requested(self) -> None:
        self._granted_since_registration.clear()
        self._known_before_registration |= self.held

    def registered(self, leader_epoch: int, reply: Registered) -> Changes:
        changes = Changes()
        if not self._is_current(leader_epoch):
            return changes
        early, self._early_revocations = self._early_revocations, None
        for epoch, revocation in early or ():
            if epoch == leader_epoch:
                self._revoke(revocation, changes)
        listed = {_key(grant) for grant in reply.grants}
        self.may_lack_grants = any(epoch == leader_epoch and key not in listed for epoch, key in self._early_grants)
        self._early_grants.clear()
        kept = listed | self.revoking | self._granted_since_registration
        for key in self._known_before_registration.keys() - kept:
            self._record_release(key[0], _slice_of(self._known_before_registration[key]), key[1])
        self._known_before_registration.clear()
        for key in [each for each in self.held if each not in kept]:
            self._drop(key, changes)
        for grant in reply.grants:
            self._start_unless_released(grant, changes)
        return changes

    def changed(self, push: AssignmentChanged) -> Changes:
        changes = Changes()
        if not self._is_current(push.leader_epoch):
            return changes
        if self._early_revocations is not None:
            kept = push.revoked[: MAX_EARLY - len(self._early_revocations)]
            self._early_revocations += [(push.leader_epoch, each) for each in kept]
            new = push.granted[: MAX_EARLY - len(self._early_grants)]
            self._early_grants.update((push.leader_epoch, _key(grant)) for grant in new)
            return changes
        for revocation in push.revoked:
            self._revoke(revocation, changes)
        for grant in push.granted:
            self._granted_since_registration.add(_key(grant))
            self._start_unless_released(grant, changes)
        return changes

    def confirmed(self, revocation: Revocation) -> None:
        key = _key(revocation)
        self._record_release(revocation.segment, _slice_of(self.held.get(key, revocation)), revocation.generation)
        if key in self.held:
            self._remove(key)

    def drop_all(self) -> Changes:
        changes = Changes()
        self._known_before_registration |= self.held
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
        """Rules 5 and 6."""
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
        """Return the generations of the holdings that share a bucket with ``segment_slice``."""
        return [number for number, held in self._by_segment.get(segment, {}).items() if overlaps(held, segment_slice)]

    def _highest_released_generation(self, segment: int, segment_slice: SegmentSlice) -> int:
        released = self._released_slices.get(segment, {})
        return max((generation for other, generation in released.items() if overlaps(other, segment_slice)), default=-1)

    def _record_release(self, segment: int, segment_slice: SegmentSlice, generation: int) -> None:
        released = self._released_slices.setdefault(segment, {})
        released[segment_slice] = max(released.get(segment_slice, -1), generation)

    def _drop(self, key: HeldKey, changes: Changes) -> None:
        self._remove(key)
        changes.stop.append(key)

    def _remove(self, key: HeldKey) -> None:
        del self.held[key], self._by_segment[key[0]][key[1]]
        self.revoking.discard(key)


def _key(named: Grant | Revocation) -> HeldKey:
    return named.segment, named.generation


def _slice_of(named: Grant | Revocation) -> SegmentSlice:
    return slice_of(named.segment, named.first_bucket, named.end_bucket)


def finish_seconds(revoke_timeout_seconds: float) -> float:
    """Return how long after a revocation a consumer waits for acknowledgements, below the leader's limit."""
    return max(revoke_timeout_seconds - CONFIRMATION_SECONDS, revoke_timeout_seconds * 2 / 3)
