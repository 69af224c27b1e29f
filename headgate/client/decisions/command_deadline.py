"""The deadline of one command, by the clock of each term that it is sent to.

A leader that was frozen finds commands in its socket whose clients have given up. It must refuse
them, and it cannot compare its wall clock with the client's. So the deadline is an age of the
leader's own term: the first attempt has the limit 0, and its refusal contains the age. The client
adds the time that it will still wait. The age was read before the refusal arrived, so the leader's
limit passes no later than the client's own, as long as both clocks run at the same speed. Leases
rest on the same assumption (Gray and Cheriton, SOSP 1989).
"""


class CommandDeadline:
    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._leader_epoch: int | None = None
        self._max_term_age_ms = 0
        self.may_be_executed = False
        """Whether a copy was sent that a leader could execute."""

    def max_term_age_ms(self, leader_epoch: int) -> int:
        """Return the limit for an attempt in this term; 0 while the term's age is unknown."""
        return self._max_term_age_ms if leader_epoch == self._leader_epoch else 0

    def sent(self, leader_epoch: int) -> None:
        self.may_be_executed |= self.max_term_age_ms(leader_epoch) > 0

    def learn(self, leader_epoch: int, term_age_ms: int, now: float) -> bool:
        """Note the age of the term in a refusal that arrived at ``now``; return whether it is news."""
        if leader_epoch == self._leader_epoch:
            return False
        self._leader_epoch = leader_epoch
        self._max_term_age_ms = term_age_ms + max(0, int((self._deadline - now) * 1000))
        return True
