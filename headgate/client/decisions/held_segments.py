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

from headgate.model.bucket_ranges import Place, overlap, place_of
from headgate.protocol.messages import AssignmentChanged, Grant, Registered, Revocation

HeldKey = tuple[int, int]
"""(segment, generation)."""
FENCED_REMEMBERED = 1000
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


class Assignment:
    """What one consumer holds, as far as it has been told."""

    def __init__(self) -> None:
        self.held: dict[HeldKey, Grant] = {}
        self.revoking: set[HeldKey] = set()
        """What is being finished."""
        self._highest_epoch = 0
        self._granted_since_asked: set[HeldKey] = set()
        self._by_segment: dict[int, dict[int, Place]] = {}
        """Segment → generation → what of it is held."""
        self._given_up: dict[int, dict[Place, int]] = {}
        """Segment → what was held of it → highest generation given up."""
        self._fenced: deque[HeldKey] = deque(maxlen=FENCED_REMEMBERED)

    def asking(self) -> None:
        """Note that the list is being asked for."""
        self._granted_since_asked.clear()

    def registered(self, reply: Registered) -> Changes:
        """Take the complete list."""
        changes = Changes()
        if not self._is_current(reply.leader_epoch):
            return changes
        listed = {_key(grant) for grant in reply.grants}
        for key in list(self.held):
            if key not in listed and key not in self.revoking and key not in self._granted_since_asked:
                self._drop(key, changes)
        for grant in reply.grants:
            self._start_unless_over(grant, changes)
        return changes

    def changed(self, push: AssignmentChanged) -> Changes:
        """Take differences."""
        changes = Changes()
        if not self._is_current(push.leader_epoch):
            return changes
        for revocation in push.revoked:
            self._revoke(revocation, changes)
        for grant in push.granted:
            self._granted_since_asked.add(_key(grant))
            self._start_unless_over(grant, changes)
        return changes

    def confirmed(self, revocation: Revocation) -> None:
        """Learn that the leader has taken back what was revoked."""
        key = _key(revocation)
        self._give_up(revocation.segment, _place(self.held.get(key, revocation)), revocation.generation)
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

    def _start_unless_over(self, grant: Grant, changes: Changes) -> None:
        """Rule 4."""
        place, generation = _place(grant), grant.generation
        around = self._held_around(place, grant.segment)
        if _key(grant) in self._fenced or self._latest_given_up(grant.segment, place) >= generation:
            return
        if any(other >= generation for other in around):
            return
        for earlier in around:
            self._drop((grant.segment, earlier), changes)
        self.held[_key(grant)] = grant
        self._by_segment.setdefault(grant.segment, {})[generation] = place
        changes.start.append(grant)

    def _revoke(self, revocation: Revocation, changes: Changes) -> None:
        segment, generation, key = revocation.segment, revocation.generation, _key(revocation)
        if key in self.held:
            if revocation.final:
                self._give_up(segment, _place(self.held[key]), generation)
                self._drop(key, changes)
            elif key not in self.revoking:
                self.revoking.add(key)
                changes.finish.append(revocation)
            return
        if revocation.final:
            self._fenced.append(key)
            return
        place = _place(revocation)
        around = self._held_around(place, segment)
        if generation < self._latest_given_up(segment, place) or any(other > generation for other in around):
            return
        for earlier in around:
            self._drop((segment, earlier), changes)
        self._give_up(segment, place, generation)
        changes.confirm.append(revocation)

    def _held_around(self, place: Place, segment: int) -> list[int]:
        """Return the generations of what is held and has a bucket in common with ``place``."""
        return [generation for generation, held in self._by_segment.get(segment, {}).items() if overlap(held, place)]

    def _latest_given_up(self, segment: int, place: Place) -> int:
        given_up = self._given_up.get(segment, {})
        return max((generation for other, generation in given_up.items() if overlap(other, place)), default=-1)

    def _give_up(self, segment: int, place: Place, generation: int) -> None:
        given_up = self._given_up.setdefault(segment, {})
        given_up[place] = max(given_up.get(place, -1), generation)

    def _drop(self, key: HeldKey, changes: Changes) -> None:
        self._forget(key)
        changes.stop.append(key)

    def _forget(self, key: HeldKey) -> None:
        del self.held[key], self._by_segment[key[0]][key[1]]
        self.revoking.discard(key)


def _key(named: Grant | Revocation) -> HeldKey:
    return named.segment, named.generation


def _place(named: Grant | Revocation) -> Place:
    return place_of(named.segment, named.first_bucket, named.end_bucket)
