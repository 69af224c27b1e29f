"""Decide what one producer says to one shard's leader, and what becomes of each batch.

Events go in as calls (a batch was formed, a reply came, a leader was announced, the connection went, time passed),
commands come out as values. It knows no clock, loop, client or randomness: ``now`` is seconds of any steady clock,
``jitter`` a number from 0 to 1 that the caller draws. headgate.client.shard_session performs the commands.

What it does not do: form batches, encode them, or bound memory.

The rules, with where each comes from (design, section 4; "E" is the combined table of the peers' rules, KIP-91/360):

1.  The highest leader epoch seen never falls; an older or equal hint changes nothing. A refusal by a reign older than
    the one that was asked is ignored: a deposed leader talks (Restate, stale hints).
2.  All sends of one attempt are pinned to one leader epoch. Any refusal or loss ends the attempt: the head and all
    behind it are carried over and replayed in order, the same records under the same sequence, after a pause.
3.  The first send of an attempt goes alone, and so does the first after a long silence; its commit opens the window.
4.  The window is the smaller of our own and the announced one; one where the leader does not pipeline.
5.  ``Committed`` is true whenever it comes, also for an older attempt. A refusal counts only in its own attempt.
6.  Outcomes are told head first. What is known to be committed behind the head is not sent again.
7.  The leader takes no sequence before its predecessor, so a commit behind the head proves the head. If the head's own
    reply does not follow shortly, it is asked for again in the same attempt: that brings its offsets.
8.  A batch's deadline is fixed when it is formed. At its deadline a batch that was never sent is not stored; one that
    was sent is unknown, whatever was refused: a refusal speaks for one copy, and a broker may have doubled it.
9.  An expired batch that was sent leaves a possible gap. No new sequence is used until nobody waits for what is in
    flight; until then it is replayed with the rest, which may prove that there is no gap. After that the identity is
    opened again at the next producer epoch, and numbering restarts at 0 (KIP-360). The leader assigns epochs; none is
    made up here.
10. The same token asks until the answer is here, so a lost reply costs no further epoch.
11. ``fenced`` ends the session. Nothing is renumbered silently.
12. ``out_of_order`` for a probe means that the leader has forgotten our history, because nothing before it is open. If
    every copy that was sent has been refused, nothing of it is stored: it is numbered anew after a bump. Otherwise it
    is tried once more, and then all that was sent fails as unknown (E, note 4). Behind the head it only means that
    something before it was lost: never a bump (E, note 5; librdkafka 4953).
13. ``invalid`` fails that batch alone. Its sequence stays unused, so what is behind it is numbered anew after a bump.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice, takewhile

from headgate.client.decisions.session_types import (
    OVERTAKEN_SECONDS,
    PROBE_AFTER_SILENCE_SECONDS,
    Command,
    Forget,
    Identified,
    OpenIdentity,
    OpenRefused,
    Outcome,
    Phase,
    Resolve,
    SendBatch,
    SentRequest,
    SessionBatch,
    pause_seconds,
    placeless,
)
from headgate.protocol import messages as m


class ProducerSession:
    """One (producer, shard)."""

    def __init__(
        self,
        *,
        max_in_flight: int,
        request_timeout_seconds: float,
        request_ids: Iterator[int],
        tokens: Iterator[str],
    ) -> None:
        """``request_ids`` and ``tokens`` never repeat."""
        self.phase = Phase.WAITING
        self.attempt = 0
        self.highest_epoch = 0
        self.resent_batches = 0
        self.bumps = 0
        self._max_in_flight = max_in_flight
        self._request_timeout_seconds = request_timeout_seconds
        self._request_ids = request_ids
        self._tokens = tokens
        self._connected = False
        self._announced: int | None = None
        self._window = 1
        self._pinned = 0
        self._identity: tuple[int, int] | None = None
        self._reopening = False
        self._token: str | None = None
        self._open_wanted = False
        self._opening_sent_at = 0.0
        self._next_sequence = 0
        self._broken = False
        """A sequence below the next one will never be filled."""
        self._failures = 0
        self._resume_at = 0.0
        self._heard_at = 0.0
        self._in_flight: deque[SessionBatch] = deque()
        self._queue: deque[SessionBatch] = deque()
        self._sent: dict[int, SentRequest] = {}
        self._out: list[Command] = []

    # --- what is asked of it ------------------------------------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        """When to call `tick`, if nothing else happens before."""
        if self.phase is Phase.FENCED:
            return None
        # What queues does not expire before what is in flight.
        waiting = (batch for batch in (*self._in_flight, *islice(self._queue, 1)) if not batch.told)
        times = [batch.deadline for batch in islice(waiting, 1)]
        if self.phase is Phase.BACKING_OFF:
            times.append(self._resume_at)
        elif self.phase is Phase.OPENING:
            times.append(self._opening_sent_at + self._request_timeout_seconds)
        elif self.phase in (Phase.PROBING, Phase.STREAMING):
            times.extend(
                batch.sent_at + self._request_timeout_seconds
                for batch in self._in_flight
                if batch.answer is None and batch.attempt == self.attempt
            )
            times.extend(batch.ask_again_at for batch in self._in_flight if batch.ask_again_at is not None)
        return min(times, default=None)

    @property
    def unresolved(self) -> int:
        """How many batches have an owner who waits."""
        return len(self._queue) + sum(not batch.told for batch in self._in_flight)

    @property
    def in_flight(self) -> int:
        """How many batches have a sequence and no outcome."""
        return len(self._in_flight)

    @property
    def wants_batch(self) -> bool:
        """Whether nothing queues, so that it is better to offer a batch now than to let it grow."""
        return not self._queue

    # --- events -------------------------------------------------------------------------------------------------------

    def offer(self, payload: object, deadline: float, now: float) -> list[Command]:
        """Take a batch. Offered deadlines do not fall."""
        if self.phase is Phase.FENCED:
            return [Resolve(payload, Outcome.FENCED, reason="this producer has been fenced")]
        self._queue.append(SessionBatch(payload, deadline))
        return self._commands(now)

    def open(self, now: float) -> list[Command]:
        """Ask for an identity before there is anything to send; `Identified` or `OpenRefused` follows."""
        self._open_wanted = self._identity is None or self._reopening
        return self._commands(now)

    def connection_changed(self, connected: bool, now: float) -> list[Command]:
        """Learn that the broker came or went."""
        self._connected = connected
        if not connected and self._running():
            self.phase = Phase.WAITING
        return self._commands(now)

    def leader_announced(self, leader_epoch: int, pipelining: bool, window: int, now: float) -> list[Command]:
        """Learn who leads; rule 1 and rule 4."""
        if self._announced is not None and leader_epoch < self._announced:
            return []
        newer = self._announced is None or leader_epoch > self._announced
        self._announced = leader_epoch
        self.highest_epoch = max(self.highest_epoch, leader_epoch)
        self._window = max(1, min(self._max_in_flight, window)) if pipelining else 1
        if newer and self._running():
            self.phase = Phase.WAITING
        return self._commands(now)

    def committed(self, request_id: int, reply: m.Committed, now: float) -> list[Command]:
        """Learn that a batch is durable; rules 5 to 7."""
        sent = self._sent.get(request_id)
        if sent is None or sent.batch is None:
            return []
        self._heard_at = now
        self._failures = 0
        batch = sent.batch
        batch.answer = batch.answer or reply
        batch.ask_again_at = None
        for earlier in self._in_flight:
            if earlier is batch:
                break
            if earlier.answer is None and earlier.ask_again_at is None and earlier.attempt == self.attempt:
                earlier.ask_again_at = now + OVERTAKEN_SECONDS
        self._resolve_answered()
        return self._commands(now)

    def identified(self, request_id: int, reply: m.ProducerIdentity, now: float) -> list[Command]:
        """Learn the identity; numbering begins at 0."""
        sent = self._sent.get(request_id)
        if sent is None or sent.batch is not None or self._token is None:
            return []
        assert not self._in_flight, "a new identity while batches of the old one are in flight"
        self._heard_at = now
        self._identity = (reply.producer_id, reply.producer_epoch)
        self._next_sequence = 0
        self._forget_opening()
        self._reopening = self._open_wanted = self._broken = False
        if self.phase is Phase.OPENING:
            self.phase = Phase.PROBING
        self._out.append(Identified(reply.source_position))
        return self._commands(now)

    def refused(self, request_id: int, reply: m.Refused, now: float, jitter: float) -> list[Command]:
        """Learn that a request was not taken."""
        sent = self._sent.get(request_id)
        if sent is None or reply.leader_epoch < sent.leader_epoch:
            return []  # rule 1: what a deposed leader says of a request that was not for it
        if reply.leader_epoch > sent.leader_epoch:
            # The reign that was asked is over. It may have taken this copy before.
            self.highest_epoch = max(self.highest_epoch, reply.leader_epoch)
        elif sent.batch is not None and reply.verdict != "not_leader":
            sent.batch.open_copies.discard(request_id)
        if sent.attempt != self.attempt or not self._running():
            return self._commands(now)  # rule 5
        self._heard_at = now
        if reply.leader_epoch > sent.leader_epoch or reply.verdict in ("not_leader", "unavailable"):
            self._back_off(now, jitter)
        elif reply.verdict == "fenced":
            self._fence(reply.reason)
        elif sent.batch is None:
            self._opening_refused(reply, now, jitter)
        elif reply.verdict == "invalid":
            self._drop_invalid(sent.batch, reply)
        else:
            self._out_of_order(sent.batch, reply, now, jitter)
        return self._commands(now)

    def send_failed(self, request_id: int, now: float, jitter: float) -> list[Command]:
        """Learn that a send could not even be handed over."""
        sent = self._sent.get(request_id)
        if sent is not None and sent.attempt == self.attempt and self._running():
            self._back_off(now, jitter)
        return self._commands(now)

    def tick(self, now: float, jitter: float) -> list[Command]:
        """Let time pass: pauses end, requests time out, batches expire."""
        if self._timed_out(now):
            self._back_off(now, jitter)
        return self._commands(now)

    def abandon(self, reason: str) -> list[Command]:
        """Give up everything, because the producer closes: what was sent is unknown, the rest is not stored."""
        for batch in (*self._in_flight, *self._queue):
            self._tell(batch, Outcome.UNKNOWN if batch.ever_sent else Outcome.NOT_STORED, reason)
        self._in_flight.clear()
        self._queue.clear()
        self._out.append(Forget(tuple(self._sent)))
        self._sent.clear()
        self._broken = True
        return self._commands_so_far()

    # --- what follows -------------------------------------------------------------------------------------------------

    def _commands(self, now: float) -> list[Command]:
        self._expire(now)
        self._close_gap()
        if self.phase is Phase.BACKING_OFF and now >= self._resume_at:
            self.phase = Phase.WAITING
        has_work = self._in_flight or self._queue or self._open_wanted
        if self.phase is Phase.WAITING and self._connected and self._leader_known() and has_work:
            self._begin_attempt(now)
        if self.phase in (Phase.PROBING, Phase.STREAMING):
            self._send_what_may_go(now)
        return self._commands_so_far()

    def _commands_so_far(self) -> list[Command]:
        out, self._out = self._out, []
        return out

    def _running(self) -> bool:
        return self.phase in (Phase.OPENING, Phase.PROBING, Phase.STREAMING)

    def _leader_known(self) -> bool:
        return self._announced is not None and self._announced >= self.highest_epoch

    def _blocked(self) -> bool:
        """Whether no new sequence may be used: rule 9."""
        return self._broken or any(batch.told for batch in self._in_flight)

    def _begin_attempt(self, now: float) -> None:
        assert self._announced is not None, "an attempt without a leader"
        self.attempt += 1
        self._pinned = self._announced
        for batch in self._in_flight:
            batch.ask_again_at = None
        if self._identity is None or self._reopening:
            assert not self._in_flight, "an identity is asked for while batches of the old one are in flight"
            self.phase = Phase.OPENING
            self._ask_for_identity(now)
        else:
            self.phase = Phase.PROBING

    def _ask_for_identity(self, now: float) -> None:
        if self._token is None:
            self._token = next(self._tokens)
        request_id = next(self._request_ids)
        self._sent[request_id] = SentRequest(None, self.attempt, self._pinned)
        self._opening_sent_at = now
        producer_id, producer_epoch = self._identity or (None, 0)
        self._out.append(OpenIdentity(request_id, self._pinned, self._token, producer_id, producer_epoch))

    def _forget_opening(self) -> None:
        """No other copy of the question matters any more, whatever its answer."""
        self._token = None
        stale = tuple(request_id for request_id, sent in self._sent.items() if sent.batch is None)
        for request_id in stale:
            del self._sent[request_id]
        self._out.append(Forget(stale))

    def _send_what_may_go(self, now: float) -> None:
        if self.phase is Phase.STREAMING and now - self._heard_at > PROBE_AFTER_SILENCE_SECONDS and not self._in_flight:
            self.phase = Phase.PROBING  # rule 3
            self.attempt += 1
        outstanding = sum(batch.answer is None and batch.attempt == self.attempt for batch in self._in_flight)
        limit = 1 if self.phase is Phase.PROBING else self._window
        for batch in self._in_flight:
            if batch.answer is not None:
                continue
            if batch.ask_again_at is not None and now >= batch.ask_again_at:
                batch.ask_again_at = None
                self._send(batch, now)
            elif batch.attempt != self.attempt:
                if outstanding >= limit:
                    return
                outstanding += 1
                self._send(batch, now)
        while self._queue and outstanding < limit and len(self._in_flight) < self._window and not self._blocked():
            batch = self._queue.popleft()
            batch.sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
            self._in_flight.append(batch)
            outstanding += 1
            self._send(batch, now)

    def _send(self, batch: SessionBatch, now: float) -> None:
        assert self._identity is not None, "sending without an identity"
        assert batch.sequence is not None, "sending without a sequence"
        self.resent_batches += batch.ever_sent
        batch.ever_sent = True
        request_id = next(self._request_ids)
        batch.request_ids.append(request_id)
        batch.open_copies.add(request_id)
        batch.attempt, batch.sent_at = self.attempt, now
        self._sent[request_id] = SentRequest(batch, self.attempt, self._pinned)
        producer_id, producer_epoch = self._identity
        self._out.append(
            SendBatch(
                batch.payload, request_id, self._pinned, producer_id, producer_epoch, batch.sequence, self.attempt
            ),
        )

    def _back_off(self, now: float, jitter: float) -> None:
        """End the attempt: rule 2."""
        self._resume_at = now + pause_seconds(self._failures, jitter)
        self._failures += 1
        self.phase = Phase.BACKING_OFF

    def _timed_out(self, now: float) -> bool:
        if self.phase is Phase.OPENING:
            return now >= self._opening_sent_at + self._request_timeout_seconds
        if self.phase not in (Phase.PROBING, Phase.STREAMING):
            return False
        return any(
            batch.answer is None
            and batch.attempt == self.attempt
            and now >= batch.sent_at + self._request_timeout_seconds
            for batch in self._in_flight
        )

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def _tell(self, batch: SessionBatch, outcome: Outcome, reason: str = "", reply: m.Committed | None = None) -> None:
        if not batch.told:
            batch.told = True
            self._out.append(Resolve(batch.payload, outcome, reply, reason))

    def _forget(self, batch: SessionBatch) -> None:
        for request_id in batch.request_ids:
            del self._sent[request_id]
        self._out.append(Forget(tuple(batch.request_ids)))
        batch.request_ids.clear()
        batch.open_copies.clear()

    def _resolve_answered(self) -> None:
        while self._in_flight and self._in_flight[0].answer is not None:
            batch = self._in_flight.popleft()
            self._tell(batch, Outcome.COMMITTED, reply=batch.answer)
            self._forget(batch)
        if self.phase is Phase.PROBING and not any(
            batch.answer is None and batch.attempt == self.attempt for batch in self._in_flight
        ):
            self.phase = Phase.STREAMING

    def _expire(self, now: float) -> None:
        """Rule 8, in order: stops at the first that is not due."""
        due = list(takewhile(lambda batch: batch.told or now >= batch.deadline, self._in_flight))
        all_due = len(due) == len(self._in_flight)
        proof = next((batch.answer for batch in reversed(self._in_flight) if batch.answer is not None), None)
        for batch in due:
            if batch.answer is None and proof is not None:
                batch.answer = placeless(proof)  # rule 7
            if batch.answer is not None and batch.answer is proof:
                proof = None
            if batch.answer is None:
                self._tell(batch, Outcome.UNKNOWN, "its time was up while it was in flight")
        if due:
            self._resolve_answered()
        while all_due and self._queue and now >= self._queue[0].deadline:
            batch = self._queue.popleft()
            if batch.ever_sent:
                self._tell(batch, Outcome.UNKNOWN, "its time was up after it had been refused")
            else:
                self._tell(batch, Outcome.NOT_STORED, "its time was up before it could be sent")

    def _close_gap(self) -> None:
        """Rule 9: once nobody waits for what is in flight, start over under the next epoch."""
        if self._in_flight and all(batch.told for batch in self._in_flight):
            for batch in self._in_flight:
                self._forget(batch)
            self._in_flight.clear()
            self._broken = True
        if self._broken and not self._in_flight and self._identity is not None and not self._reopening:
            self._reopening = True
            self.bumps += 1
            if self.phase in (Phase.PROBING, Phase.STREAMING):
                self.phase = Phase.WAITING

    def _number_anew(self, batches: list[SessionBatch]) -> None:
        """Put batches that are certainly not stored back in front of the queue; rules 12 and 13."""
        for batch in reversed(batches):
            if batch.told:
                self._forget(batch)
                continue
            # Late answers are about a sequence that it no longer has.
            self._forget(batch)
            batch.sequence, batch.answer, batch.ask_again_at, batch.attempt = None, None, None, 0
            self._queue.appendleft(batch)
        self._broken = True

    def _drop_invalid(self, batch: SessionBatch, reply: m.Refused) -> None:
        """Rule 13."""
        batches = list(self._in_flight)
        place = batches.index(batch)
        if any(later.answer is not None for later in batches[place + 1 :]):
            # It is stored; its topic has gone since.
            batch.answer = placeless(reply)
            self._resolve_answered()
            return
        self._tell(batch, Outcome.INVALID, reply.reason)
        self._forget(batch)
        while len(self._in_flight) > place:
            self._in_flight.pop()
        self._number_anew(batches[place + 1 :])
        self._resolve_answered()

    def _out_of_order(self, batch: SessionBatch, reply: m.Refused, now: float, jitter: float) -> None:
        """Rule 12."""
        is_probe = self.phase is Phase.PROBING and batch is self._in_flight[0]
        self._back_off(now, jitter)
        if not is_probe:
            return
        if not batch.open_copies:
            batches = list(self._in_flight)
            self._in_flight.clear()
            self._number_anew(batches)
        elif not batch.doubted:
            batch.doubted = True
        else:
            for lost in self._in_flight:
                self._tell(lost, Outcome.UNKNOWN, f"the leader does not know this producer's history: {reply.reason}")

    def _opening_refused(self, reply: m.Refused, now: float, jitter: float) -> None:
        if reply.verdict != "invalid":
            self._back_off(now, jitter)
            return
        self._open_wanted = False
        self._forget_opening()
        for batch in self._queue:
            self._tell(batch, Outcome.INVALID, reply.reason)
        self._queue.clear()
        self.phase = Phase.WAITING
        self._out.append(OpenRefused(reply.verdict, reply.reason))

    def _fence(self, reason: str) -> None:
        """Rule 11."""
        self.phase = Phase.FENCED
        if self._token is not None:
            self._out.append(OpenRefused("fenced", reason))
        for batch in (*self._in_flight, *self._queue):
            self._tell(batch, Outcome.FENCED, reason)
        self._in_flight.clear()
        self._queue.clear()
        self._out.append(Forget(tuple(self._sent)))
        self._sent.clear()
