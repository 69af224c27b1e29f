"""A shard state to which the decisions of commands are applied, as the leader does."""

from collections.abc import Callable
from typing import Any, TypeVar

from headgate.model import entries as e
from shard.requests.handlers import Decision, Steps, Stepwise, require_seen
from shard.state.shard_state import ShardState
from shard.state.topic import Topic
from shard.steps import complete
from shard.subscriptions.refusal import Refusal, RequestRefusedError

OutcomeT = TypeVar("OutcomeT")


class CommandShard:
    """State after a term entry, ``entries``, and everything applied since."""

    def __init__(self, *entries: e.AnyEntry) -> None:
        self.state = ShardState(0)
        self.entries: list[e.AnyEntry] = []
        """Everything that `apply` and `do` applied since."""
        self.state.apply_all([e.TermStarted(leader_epoch=3, instance="a"), *entries], chunk=1, at_ms=0)

    def apply(self, *entries: e.AnyEntry) -> None:
        """Apply ``entries`` as the next chunk."""
        self.entries += entries
        self.state.apply_all(entries, chunk=self.state.chunk + 1, at_ms=1)

    def do(self, decision: Any) -> Any:
        """Apply a decision and return its reply body; fails for a refusal."""
        assert isinstance(decision, Decision), decision
        if decision.entries:
            self.apply(*decision.entries)
        answer = decision.answer(self.state)
        return complete(answer.steps) if isinstance(answer, Stepwise) else answer


def decided(steps: Steps) -> Decision | Refusal:
    """Take all ``steps`` of a decision and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: Decision | Refusal = end.value
            return outcome


def judged(decide: Callable[..., OutcomeT], request: Any, state: ShardState, *user: str) -> OutcomeT | Refusal:
    """Return the decision, or the refusal that the check of what was seen, or a lookup, has raised."""
    try:
        require_seen(request, state)
        return decide(request, state, *user)
    except RequestRefusedError as error:
        return error.refusal


def imported_topic(*segments: e.ImportedSegment, positions: e.Positions = "offsets") -> Topic:
    """Return an external topic, as the shard's state has it after an import."""
    state = ShardState(0)
    entry = e.TopicImported(topic_id=1, topic="t", token="x", segments=list(segments), positions=positions)
    state.apply_all([entry], chunk=1, at_ms=0)
    return state.topics["t"]
