"""A producer session and its other side, spoken by hand: what the dialogue tests stand on."""

from __future__ import annotations

import itertools

from headgate.client.decisions.producer_session import ProducerSession
from headgate.client.decisions.session_transitions import Phase
from headgate.client.decisions.session_types import IdentityRejected, OpenIdentity, Outcome, Resolve, SendBatch
from headgate.protocol import messages as m


class Dialogue:
    """A session and the other side, spoken by hand. Time stands still unless it is passed."""

    def __init__(self, *, max_in_flight: int = 5, deadline: float = 100.0) -> None:
        self.session = ProducerSession(
            max_in_flight=max_in_flight,
            request_timeout_seconds=5.0,
            request_ids=itertools.count(1),
            tokens=(f"token-{n}" for n in itertools.count(1)),
        )
        self.now = 0.0
        self.deadline = deadline
        self.outcomes: dict[object, Outcome] = {}
        self.replies: dict[object, m.Committed | None] = {}
        self.last: dict[str, SendBatch] = {}
        self.opening: OpenIdentity | None = None

    def _heard(self, commands) -> list[str]:
        """Return what is sent, as "name@sequence" or "open"; remember the rest."""
        said = []
        for command in commands:
            if isinstance(command, SendBatch):
                said.append(f"{command.batch}@{command.sequence}")
                self.last[str(command.batch)] = command
            elif isinstance(command, OpenIdentity):
                said.append("open")
                self.opening = command
            elif isinstance(command, Resolve):
                assert command.batch not in self.outcomes, f"{command.batch} has two outcomes"
                self.outcomes[command.batch] = command.outcome
                self.replies[command.batch] = command.reply
            elif isinstance(command, IdentityRejected):
                said.append(f"open rejected: {command.verdict}")
        return said

    def offer(self, *names: str) -> list[str]:
        said = []
        for name in names:
            said += self._heard(self.session.offer(name, self.now + self.deadline, self.now))
        return said

    def leader(self, epoch: int = 1, *, pipelining: bool = True, window: int = 64) -> list[str]:
        return self._heard(self.session.leader_announced(epoch, pipelining, window, self.now))

    def connect(self, connected: bool = True) -> list[str]:
        return self._heard(self.session.connection_changed(connected, self.now))

    def identify(self, producer_id: int = 7, epoch: int = 0) -> list[str]:
        assert self.opening is not None
        reply = m.ProducerIdentity(
            producer_id=producer_id,
            producer_epoch=epoch,
            source_position=b"here",
        )
        return self._heard(self.session.identified(self.opening.request_id, reply, self.now))

    def commit(self, *sends: str | SendBatch) -> list[str]:
        said = []
        for send in sends:
            command = self.last[send] if isinstance(send, str) else send
            reply = m.Committed(placements=[])
            said += self._heard(self.session.committed(command.request_id, reply, self.now))
        return said

    def refuse(
        self, send: str | SendBatch | OpenIdentity, verdict: m.Verdict, *, epoch: int | None = None
    ) -> list[str]:
        command = self.last[send] if isinstance(send, str) else send
        at = command.leader_epoch if epoch is None else epoch
        reply = m.Rejected(verdict=verdict, reason="so it is")
        return self._heard(self.session.rejected(command.request_id, at, reply, self.now, 1.0))

    def wait(self, seconds: float) -> list[str]:
        until, said = self.now + seconds, []
        while (wake_at := self.session.wake_at) is not None and wake_at <= until:
            self.now = max(self.now, wake_at)
            said += self._heard(self.session.tick(self.now, 1.0))
        self.now = until
        return said

    def wait_for_pause(self) -> list[str]:
        """Until the back-off is over, whatever its length."""
        assert self.session.phase is Phase.BACKING_OFF
        return self.wait(self.session.wake_at - self.now)


def streaming(**settings) -> Dialogue:
    """A session that has opened and probed with batch "0"."""
    talk = Dialogue(**settings)
    talk.connect()
    talk.leader()
    assert ["open"] == talk.offer("0")
    assert ["0@0"] == talk.identify()
    talk.commit("0")
    assert {"0": Outcome.COMMITTED} == talk.outcomes
    return talk
