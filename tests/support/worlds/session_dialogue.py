"""A producer session whose leader is played by the test, call by call."""

import itertools

from headgate.client.decisions.producer_session import Phase, ProducerSession
from headgate.client.decisions.session_batches import (
    Expire,
    ForgetRequests,
    IdentityRejected,
    OpenIdentity,
    Outcome,
    Resolve,
    SendBatch,
)
from headgate.protocol.replies import Committed, ProducerIdentity, Rejected, Verdict


class Dialogue:
    """A session and its leader. Time passes only in `wait`."""

    def __init__(self, *, named: bool = False, max_in_flight: int = 5, deadline: float = 100.0) -> None:
        self.session = ProducerSession(
            named=named,
            max_in_flight=max_in_flight,
            request_timeout_seconds=5.0,
            request_ids=itertools.count(1),
            tokens=(f"token-{n}" for n in itertools.count(1)),
            unanswered=lambda: "shard 0: it has no leader",
        )
        self.now = 0.0
        self.deadline = deadline
        self.offered: set[str] = set()
        self.outcomes: dict[object, Outcome] = {}
        self.replies: dict[object, Committed | None] = {}
        self.expired: list[tuple[str, float, Outcome]] = []
        """(batch, latest deadline, outcome) of records that expired before their batch."""
        self.reasons: dict[object, str] = {}
        self.last: dict[str, SendBatch] = {}
        self.awaited: set[int] = set()
        """Requests to which replies are expected."""
        self.opening: OpenIdentity | None = None

    def _record(self, commands) -> list[str]:
        """Record the commands; return what is sent, as "name@sequence" or "open"."""
        sent = []
        for command in commands:
            if isinstance(command, SendBatch | OpenIdentity):
                self.awaited.add(command.request_id)
            if isinstance(command, SendBatch):
                sent.append(f"{command.batch}@{command.sequence}")
                self.last[str(command.batch)] = command
            elif isinstance(command, OpenIdentity):
                sent.append("open")
                self.opening = command
            elif isinstance(command, ForgetRequests):
                self.awaited.difference_update(command.request_ids)
            elif isinstance(command, Expire):
                assert command.batch not in self.outcomes, f"{command.batch} has an outcome"
                self.expired.append((str(command.batch), command.due, command.outcome))
                self.reasons[command.batch] = command.reason
            elif isinstance(command, Resolve):
                assert command.batch not in self.outcomes, f"{command.batch} has two outcomes"
                self.outcomes[command.batch] = command.outcome
                self.replies[command.batch] = command.reply
                self.reasons[command.batch] = command.reason
            elif isinstance(command, IdentityRejected):
                sent.append(f"open rejected: {command.verdict}")
        return sent

    def offer(self, *names: str) -> list[str]:
        sent = []
        for name in names:
            sent += self.offer_until(name, self.now + self.deadline)
        return sent

    def offer_until(self, name: str, *deadlines: float, source: str | None = None) -> list[str]:
        """Offer a batch of records with these deadlines."""
        self.offered.add(name)
        return self._record(self.session.offer(name, deadlines, self.now, source))

    @property
    def unresolved(self) -> int:
        return len(self.offered - self.outcomes.keys())

    def leader(self, epoch: int = 1, *, window: int = 64) -> list[str]:
        return self._record(self.session.follow_leader(epoch, window, self.now))

    def connect(self, connected: bool = True) -> list[str]:
        return self._record(self.session.connection_changed(connected, self.now))

    def identify(self, producer_id: int = 7, epoch: int = 0, *, reached: int | None = None) -> list[str]:
        """Grant the identity. ``reached``: the sequence that its previous epoch reached."""
        reply = ProducerIdentity(producer_id=producer_id, producer_epoch=epoch, previous_next_sequence=reached)
        return self._record(self.session.identified(self.opening.request_id, reply, self.now))

    def commit(self, *sends: str | SendBatch) -> list[str]:
        sent = []
        for send in sends:
            command = self.last[send] if isinstance(send, str) else send
            reply = Committed(placements=[])
            sent += self._record(self.session.committed(command.request_id, reply, self.now))
        return sent

    def refuse(self, send: str | SendBatch | OpenIdentity, verdict: Verdict, *, epoch: int | None = None) -> list[str]:
        command = self.last[send] if isinstance(send, str) else send
        at = command.leader_epoch if epoch is None else epoch
        reply = Rejected(verdict=verdict, reason="refused by the test")
        return self._record(self.session.rejected(command.request_id, at, reply, self.now, 1.0))

    def wait(self, seconds: float) -> list[str]:
        until, sent = self.now + seconds, []
        while (wake_at := self.session.wake_at) is not None and wake_at <= until:
            self.now = max(self.now, wake_at)
            sent += self._record(self.session.tick(self.now, 1.0))
        self.now = until
        return sent

    def wait_for_pause(self) -> list[str]:
        """Wait until the back-off is over."""
        assert self.session.phase is Phase.BACKING_OFF
        return self.wait(self.session.wake_at - self.now)


def led(**settings) -> Dialogue:
    """Return a session that is connected, and knows its leader."""
    talk = Dialogue(**settings)
    talk.connect()
    talk.leader()
    return talk


def streaming(*offered: str, **settings) -> Dialogue:
    """Return a session that has an identity, has committed the probe "0", and sends what is ``offered``."""
    talk = led(**settings)
    assert ["open"] == talk.offer("0")
    assert ["0@0"] == talk.identify()
    talk.commit("0")
    assert {"0": Outcome.COMMITTED} == talk.outcomes
    talk.offer(*offered)
    return talk
