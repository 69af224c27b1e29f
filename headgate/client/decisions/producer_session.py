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
    was sent is unknown, whatever was rejected: a refusal speaks for one copy, and a broker may have doubled it.
9.  An expired batch that was sent leaves a possible gap. No new sequence is used until nobody waits for what is in
    flight; until then it is replayed with the rest, which may prove that there is no gap. After that the identity is
    opened again at the next producer epoch, and numbering restarts at 0 (KIP-360). The leader assigns epochs; none is
    made up here.
10. The same token asks until the answer is here, so a lost reply costs no further epoch.
11. ``fenced`` ends the session. Nothing is renumbered silently.
12. ``out_of_order`` for a probe means that the leader has forgotten our history, because nothing before it is open. If
    every copy that was sent has been rejected, nothing of it is stored: it is numbered anew after a bump. Otherwise it
    is tried once more, and then all that was sent fails as unknown (E, note 4). Behind the head it only means that
    something before it was lost: never a bump (E, note 5; librdkafka 4953).
13. ``invalid`` fails that batch alone. Its sequence stays unused, so what is behind it is numbered anew after a bump.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice, takewhile

from headgate.client.decisions.session_types import (
    MISSING_REPLY_TIMEOUT_SECONDS,
    PROBE_AFTER_SILENCE_SECONDS,
    RETRY_BACKOFF,
    Command,
    ForgetRequests,
    Identified,
    IdentityRejected,
    OpenIdentity,
    Outcome,
    Phase,
    Resolve,
    SendBatch,
    SentRequest,
    SessionBatch,
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
        self.epoch_bumps = 0
        self._max_in_flight = max_in_flight
        self._request_timeout_seconds = request_timeout_seconds
        self._request_ids = request_ids
        self._tokens = tokens
        self._connected = False
        self._announced_epoch: int | None = None
        self._window = 1
        self._attempt_epoch = 0
        self._identity: tuple[int, int] | None = None
        self._reopening = False
        self._token: str | None = None
        self._identity_wanted = False
        self._identity_requested_at = 0.0
        self._next_sequence = 0
        self._has_sequence_gap = False
        """A sequence below the next one will never be filled."""
        self._failures = 0
        self._resume_at = 0.0
        self._last_reply_at = 0.0
        self._in_flight: deque[SessionBatch] = deque()
        self._queue: deque[SessionBatch] = deque()
        self._sent: dict[int, SentRequest] = {}
        self._commands_out: list[Command] = []

    # --- what is asked of it ------------------------------------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        """When to call `tick`, if nothing else happens before."""
        if self.phase is Phase.FENCED:
            return None
        # What queues does not expire before what is in flight.
        waiting = (batch for batch in (*self._in_flight, *islice(self._queue, 1)) if not batch.resolved)
        times = [batch.deadline for batch in islice(waiting, 1)]
        if self.phase is Phase.BACKING_OFF:
            times.append(self._resume_at)
        elif self.phase is Phase.OPENING:
            times.append(self._identity_requested_at + self._request_timeout_seconds)
        elif self.phase in (Phase.PROBING, Phase.STREAMING):
            times.extend(
                batch.sent_at + self._request_timeout_seconds
                for batch in self._in_flight
                if batch.reply is None and batch.attempt == self.attempt
            )
            times.extend(batch.resend_at for batch in self._in_flight if batch.resend_at is not None)
        return min(times, default=None)

    @property
    def unresolved_batches(self) -> int:
        """How many batches have an owner who waits."""
        return len(self._queue) + sum(not batch.resolved for batch in self._in_flight)

    @property
    def in_flight(self) -> int:
        """How many batches have a sequence and no outcome."""
        return len(self._in_flight)

    @property
    def ready_for_batch(self) -> bool:
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
        """Ask for an identity before there is anything to send; `Identified` or `IdentityRejected` follows."""
        self._identity_wanted = self._identity is None or self._reopening
        return self._commands(now)

    def connection_changed(self, connected: bool, now: float) -> list[Command]:
        """Learn that the broker came or went."""
        self._connected = connected
        if not connected and self._attempt_active():
            self.phase = Phase.WAITING
        return self._commands(now)

    def leader_announced(self, leader_epoch: int, pipelining: bool, window: int, now: float) -> list[Command]:
        """Learn who leads; rule 1 and rule 4."""
        if self._announced_epoch is not None and leader_epoch < self._announced_epoch:
            return []
        newer = self._announced_epoch is None or leader_epoch > self._announced_epoch
        self._announced_epoch = leader_epoch
        self.highest_epoch = max(self.highest_epoch, leader_epoch)
        self._window = max(1, min(self._max_in_flight, window)) if pipelining else 1
        if newer and self._attempt_active():
            self.phase = Phase.WAITING
        return self._commands(now)

    def committed(self, request_id: int, reply: m.Committed, now: float) -> list[Command]:
        """Learn that a batch is durable; rules 5 to 7."""
        sent = self._sent.get(request_id)
        if sent is None or sent.batch is None:
            return []
        self._last_reply_at = now
        self._failures = 0
        batch = sent.batch
        batch.reply = batch.reply or reply
        batch.resend_at = None
        for earlier in self._in_flight:
            if earlier is batch:
                break
            if earlier.reply is None and earlier.resend_at is None and earlier.attempt == self.attempt:
                earlier.resend_at = now + MISSING_REPLY_TIMEOUT_SECONDS
        self._resolve_committed()
        return self._commands(now)

    def identified(self, request_id: int, reply: m.ProducerIdentity, now: float) -> list[Command]:
        """Learn the identity; numbering begins at 0."""
        sent = self._sent.get(request_id)
        if sent is None or sent.batch is not None or self._token is None:
            return []
        assert not self._in_flight, "a new identity while batches of the old one are in flight"
        self._last_reply_at = now
        self._identity = (reply.producer_id, reply.producer_epoch)
        self._next_sequence = 0
        self._clear_identity_requests()
        self._reopening = self._identity_wanted = self._has_sequence_gap = False
        if self.phase is Phase.OPENING:
            self.phase = Phase.PROBING
        self._commands_out.append(Identified(reply.source_position))
        return self._commands(now)

    def rejected(
        self, request_id: int, leader_epoch: int, reply: m.Rejected, now: float, jitter: float
    ) -> list[Command]:
        """Learn that a request was not taken."""
        sent = self._sent.get(request_id)
        if sent is None or leader_epoch < sent.leader_epoch:
            return []  # rule 1: what a deposed leader says of a request that was not for it
        if leader_epoch > sent.leader_epoch:
            # The reign that was asked is over. It may have taken this copy before.
            self.highest_epoch = max(self.highest_epoch, leader_epoch)
        elif sent.batch is not None and reply.verdict != "not_leader":
            sent.batch.unrejected_request_ids.discard(request_id)
        if sent.attempt != self.attempt or not self._attempt_active():
            return self._commands(now)  # rule 5
        self._last_reply_at = now
        if leader_epoch > sent.leader_epoch or reply.verdict in ("not_leader", "unavailable"):
            self._back_off(now, jitter)
        elif reply.verdict == "fenced":
            self._on_fenced(reply.reason)
        elif sent.batch is None:
            self._on_identity_rejected(reply, now, jitter)
        elif reply.verdict == "invalid":
            self._fail_invalid(sent.batch, reply)
        else:
            self._on_out_of_order(sent.batch, reply, now, jitter)
        return self._commands(now)

    def send_failed(self, request_id: int, now: float, jitter: float) -> list[Command]:
        """Learn that a send could not even be handed over."""
        sent = self._sent.get(request_id)
        if sent is not None and sent.attempt == self.attempt and self._attempt_active():
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
            self._resolve(batch, Outcome.UNKNOWN if batch.ever_sent else Outcome.FAILED, reason)
        self._in_flight.clear()
        self._queue.clear()
        self._commands_out.append(ForgetRequests(tuple(self._sent)))
        self._sent.clear()
        self._has_sequence_gap = True
        return self._pop_commands()

    # --- what follows -------------------------------------------------------------------------------------------------

    def _commands(self, now: float) -> list[Command]:
        self._expire(now)
        self._close_gap()
        if self.phase is Phase.BACKING_OFF and now >= self._resume_at:
            self.phase = Phase.WAITING
        has_work = self._in_flight or self._queue or self._identity_wanted
        if self.phase is Phase.WAITING and self._connected and self._leader_known() and has_work:
            self._begin_attempt(now)
        if self.phase in (Phase.PROBING, Phase.STREAMING):
            self._send_ready_batches(now)
        return self._pop_commands()

    def _pop_commands(self) -> list[Command]:
        out, self._commands_out = self._commands_out, []
        return out

    def _attempt_active(self) -> bool:
        return self.phase in (Phase.OPENING, Phase.PROBING, Phase.STREAMING)

    def _leader_known(self) -> bool:
        return self._announced_epoch is not None and self._announced_epoch >= self.highest_epoch

    def _sequences_blocked(self) -> bool:
        """Whether no new sequence may be used: rule 9."""
        return self._has_sequence_gap or any(batch.resolved for batch in self._in_flight)

    def _begin_attempt(self, now: float) -> None:
        assert self._announced_epoch is not None, "an attempt without a leader"
        self.attempt += 1
        self._attempt_epoch = self._announced_epoch
        for batch in self._in_flight:
            batch.resend_at = None
        if self._identity is None or self._reopening:
            assert not self._in_flight, "an identity is asked for while batches of the old one are in flight"
            self.phase = Phase.OPENING
            self._request_identity(now)
        else:
            self.phase = Phase.PROBING

    def _request_identity(self, now: float) -> None:
        if self._token is None:
            self._token = next(self._tokens)
        request_id = next(self._request_ids)
        self._sent[request_id] = SentRequest(None, self.attempt, self._attempt_epoch)
        self._identity_requested_at = now
        producer_id, producer_epoch = self._identity or (None, 0)
        self._commands_out.append(
            OpenIdentity(request_id, self._attempt_epoch, self._token, producer_id, producer_epoch)
        )

    def _clear_identity_requests(self) -> None:
        """No other copy of the question matters any more, whatever its answer."""
        self._token = None
        stale = tuple(request_id for request_id, sent in self._sent.items() if sent.batch is None)
        for request_id in stale:
            del self._sent[request_id]
        self._commands_out.append(ForgetRequests(stale))

    def _send_ready_batches(self, now: float) -> None:
        if (
            self.phase is Phase.STREAMING
            and now - self._last_reply_at > PROBE_AFTER_SILENCE_SECONDS
            and not self._in_flight
        ):
            self.phase = Phase.PROBING  # rule 3
            self.attempt += 1
        outstanding = sum(batch.reply is None and batch.attempt == self.attempt for batch in self._in_flight)
        limit = 1 if self.phase is Phase.PROBING else self._window
        for batch in self._in_flight:
            if batch.reply is not None:
                continue
            if batch.resend_at is not None and now >= batch.resend_at:
                batch.resend_at = None
                self._send(batch, now)
            elif batch.attempt != self.attempt:
                if outstanding >= limit:
                    return
                outstanding += 1
                self._send(batch, now)
        while (
            self._queue
            and outstanding < limit
            and len(self._in_flight) < self._window
            and not self._sequences_blocked()
        ):
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
        batch.unrejected_request_ids.add(request_id)
        batch.attempt, batch.sent_at = self.attempt, now
        self._sent[request_id] = SentRequest(batch, self.attempt, self._attempt_epoch)
        producer_id, producer_epoch = self._identity
        self._commands_out.append(
            SendBatch(
                batch.payload,
                request_id,
                self._attempt_epoch,
                producer_id,
                producer_epoch,
                batch.sequence,
                self.attempt,
            ),
        )

    def _back_off(self, now: float, jitter: float) -> None:
        """End the attempt: rule 2."""
        self._resume_at = now + RETRY_BACKOFF.seconds(self._failures, jitter)
        self._failures += 1
        self.phase = Phase.BACKING_OFF

    def _timed_out(self, now: float) -> bool:
        if self.phase is Phase.OPENING:
            return now >= self._identity_requested_at + self._request_timeout_seconds
        if self.phase not in (Phase.PROBING, Phase.STREAMING):
            return False
        return any(
            batch.reply is None
            and batch.attempt == self.attempt
            and now >= batch.sent_at + self._request_timeout_seconds
            for batch in self._in_flight
        )

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def _resolve(
        self, batch: SessionBatch, outcome: Outcome, reason: str = "", reply: m.Committed | None = None
    ) -> None:
        if not batch.resolved:
            batch.resolved = True
            self._commands_out.append(Resolve(batch.payload, outcome, reply, reason))

    def _forget_requests(self, batch: SessionBatch) -> None:
        for request_id in batch.request_ids:
            del self._sent[request_id]
        self._commands_out.append(ForgetRequests(tuple(batch.request_ids)))
        batch.request_ids.clear()
        batch.unrejected_request_ids.clear()

    def _resolve_committed(self) -> None:
        while self._in_flight and self._in_flight[0].reply is not None:
            batch = self._in_flight.popleft()
            self._resolve(batch, Outcome.COMMITTED, reply=batch.reply)
            self._forget_requests(batch)
        if self.phase is Phase.PROBING and not any(
            batch.reply is None and batch.attempt == self.attempt for batch in self._in_flight
        ):
            self.phase = Phase.STREAMING

    def _expire(self, now: float) -> None:
        """Rule 8, in order: stops at the first that is not due."""
        due = list(takewhile(lambda batch: batch.resolved or now >= batch.deadline, self._in_flight))
        all_due = len(due) == len(self._in_flight)
        later_reply = next((batch.reply for batch in reversed(self._in_flight) if batch.reply is not None), None)
        for batch in due:
            if batch.reply is None and later_reply is not None:
                batch.reply = m.Committed(duplicate=True)  # rule 7
            if batch.reply is not None and batch.reply is later_reply:
                later_reply = None
            if batch.reply is None:
                self._resolve(batch, Outcome.UNKNOWN, "its time was up while it was in flight")
        if due:
            self._resolve_committed()
        while all_due and self._queue and now >= self._queue[0].deadline:
            batch = self._queue.popleft()
            if batch.ever_sent:
                self._resolve(batch, Outcome.UNKNOWN, "its time was up after it had been rejected")
            else:
                self._resolve(batch, Outcome.FAILED, "its time was up before it could be sent")

    def _close_gap(self) -> None:
        """Rule 9: once nobody waits for what is in flight, start over under the next epoch."""
        if self._in_flight and all(batch.resolved for batch in self._in_flight):
            for batch in self._in_flight:
                self._forget_requests(batch)
            self._in_flight.clear()
            self._has_sequence_gap = True
        if self._has_sequence_gap and not self._in_flight and self._identity is not None and not self._reopening:
            self._reopening = True
            self.epoch_bumps += 1
            if self.phase in (Phase.PROBING, Phase.STREAMING):
                self.phase = Phase.WAITING

    def _renumber(self, batches: list[SessionBatch]) -> None:
        """Put batches that are certainly not stored back in front of the queue; rules 12 and 13."""
        for batch in reversed(batches):
            if batch.resolved:
                self._forget_requests(batch)
                continue
            # Late answers are about a sequence that it no longer has.
            self._forget_requests(batch)
            batch.sequence, batch.reply, batch.resend_at, batch.attempt = None, None, None, 0
            self._queue.appendleft(batch)
        self._has_sequence_gap = True

    def _fail_invalid(self, batch: SessionBatch, reply: m.Rejected) -> None:
        """Rule 13."""
        batches = list(self._in_flight)
        index = batches.index(batch)
        if any(later.reply is not None for later in batches[index + 1 :]):
            # It is stored; its topic has gone since.
            batch.reply = m.Committed(duplicate=True)
            self._resolve_committed()
            return
        self._resolve(batch, Outcome.INVALID, reply.reason)
        self._forget_requests(batch)
        while len(self._in_flight) > index:
            self._in_flight.pop()
        self._renumber(batches[index + 1 :])
        self._resolve_committed()

    def _on_out_of_order(self, batch: SessionBatch, reply: m.Rejected, now: float, jitter: float) -> None:
        """Rule 12."""
        is_probe = self.phase is Phase.PROBING and batch is self._in_flight[0]
        self._back_off(now, jitter)
        if not is_probe:
            return
        if not batch.unrejected_request_ids:
            batches = list(self._in_flight)
            self._in_flight.clear()
            self._renumber(batches)
        elif not batch.out_of_order_once:
            batch.out_of_order_once = True
        else:
            for lost in self._in_flight:
                self._resolve(
                    lost, Outcome.UNKNOWN, f"the leader does not know this producer's history: {reply.reason}"
                )

    def _on_identity_rejected(self, reply: m.Rejected, now: float, jitter: float) -> None:
        if reply.verdict != "invalid":
            self._back_off(now, jitter)
            return
        self._identity_wanted = False
        self._clear_identity_requests()
        for batch in self._queue:
            self._resolve(batch, Outcome.INVALID, reply.reason)
        self._queue.clear()
        self.phase = Phase.WAITING
        self._commands_out.append(IdentityRejected(reply.verdict, reply.reason))

    def _on_fenced(self, reason: str) -> None:
        """Rule 11."""
        self.phase = Phase.FENCED
        if self._token is not None:
            self._commands_out.append(IdentityRejected("fenced", reason))
        for batch in (*self._in_flight, *self._queue):
            self._resolve(batch, Outcome.FENCED, reason)
        self._in_flight.clear()
        self._queue.clear()
        self._commands_out.append(ForgetRequests(tuple(self._sent)))
        self._sent.clear()
