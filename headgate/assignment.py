"""Decide what a consumer does with what its leader tells it to read.

`Registered` lists all that it holds; `AssignmentChanged` tells differences. Both may be late, doubled, lost or
overtaken. Pure: messages in, `Changes` out; who reads and confirms is headgate.consumer.

The rules, first match wins:

1. A message of a leader epoch below the highest seen is ignored, also after a reconnection.
2. A segment held at the generation that is listed goes on, undisturbed: a change of leader costs nothing.
3. A segment that `Registered` does not list is dropped: somebody else may hold it already. Not so one that is being
   finished, which is never listed, nor one whose grant was pushed after we had asked: the list may be older than that.
   Should it be gone all the same, the next heartbeat says that we hold it, and brings a final revocation.
4. A grant at a generation that was given up before, or not above the one held, is ignored.
5. A revocation of what is held: finish it, once. If it is final, stop at once.
6. A revocation of what never arrived: nothing was delivered, so it is confirmed at once. The leader waits for that.
   One that comes again after that is confirmed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.messages import AssignmentChanged, Grant, Registered, Revocation


@dataclass(slots=True)
class Changes:
    """What to do now, in this order."""

    stop: list[int] = field(default_factory=list)
    """Segments to stop at once, without a word."""
    finish: list[Revocation] = field(default_factory=list)
    """What to finish and confirm."""
    confirm: list[Revocation] = field(default_factory=list)
    """What to confirm at once."""
    start: list[Grant] = field(default_factory=list)


class Assignment:
    """What one consumer holds, as far as it has been told."""

    def __init__(self) -> None:
        self.held: dict[int, Grant] = {}
        self.revoking: set[int] = set()
        """Held segments that are being finished."""
        self._highest_epoch = 0
        self._granted_since_asked: set[int] = set()
        self._released: dict[int, int] = {}
        """Segment → highest generation given up."""

    def asking(self) -> None:
        """Note that the list is being asked for."""
        self._granted_since_asked.clear()

    def registered(self, reply: Registered) -> Changes:
        """Take the complete list."""
        changes = Changes()
        if not self._is_current(reply.leader_epoch):
            return changes
        listed = {grant.segment: grant for grant in reply.grants}
        for segment in list(self.held):
            grant = listed.get(segment)
            if grant is not None:
                is_over = grant.generation > self.held[segment].generation
            else:
                is_over = segment not in self.revoking and segment not in self._granted_since_asked
            if is_over:
                self._drop(segment, changes)
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
            self._granted_since_asked.add(grant.segment)
            held = self.held.get(grant.segment)
            if held is not None and held.generation < grant.generation:
                self._drop(grant.segment, changes)
            self._start_unless_over(grant, changes)
        return changes

    def confirmed(self, revocation: Revocation) -> None:
        """Learn that the leader has taken a segment back."""
        segment, generation = revocation.segment, revocation.generation
        self._released[segment] = max(self._released.get(segment, -1), generation)
        held = self.held.get(segment)
        if held is not None and held.generation <= generation:
            del self.held[segment]
            self.revoking.discard(segment)

    def drop_all(self) -> Changes:
        """Hold nothing any more: this consumer was evicted."""
        changes = Changes()
        for segment in list(self.held):
            self._drop(segment, changes)
        return changes

    def _is_current(self, leader_epoch: int) -> bool:
        if leader_epoch < self._highest_epoch:
            return False
        self._highest_epoch = leader_epoch
        return True

    def _start_unless_over(self, grant: Grant, changes: Changes) -> None:
        if grant.segment not in self.held and grant.generation > self._released.get(grant.segment, -1):
            self.held[grant.segment] = grant
            changes.start.append(grant)

    def _drop(self, segment: int, changes: Changes) -> None:
        del self.held[segment]
        self.revoking.discard(segment)
        changes.stop.append(segment)

    def _revoke(self, revocation: Revocation, changes: Changes) -> None:
        segment, generation = revocation.segment, revocation.generation
        held = self.held.get(segment)
        if generation < self._released.get(segment, -1) or (held is not None and held.generation > generation):
            return
        if revocation.final:
            self._released[segment] = generation
            if held is not None:
                self._drop(segment, changes)
        elif held is None or held.generation < generation:
            if held is not None:
                self._drop(segment, changes)
            self._released[segment] = generation
            changes.confirm.append(revocation)
        elif segment not in self.revoking:
            self.revoking.add(segment)
            changes.finish.append(revocation)
