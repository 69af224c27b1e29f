"""A handler gets the parts of a request that its decision needs."""

from typing import Any

import pytest

from headgate.model import entries as e
from headgate.protocol.replies import TopicList
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import ListTopics, PruneTopic, Request
from shard.requests.handlers import Decision, Stepwise, command, done, handler, user_command
from shard.state.shard_state import ShardState
from shard.steps import complete
from shard.subscriptions.refusal import Refusal

STATE = ShardState(0)
LIST = ListTopics()


def request(body: Any = LIST) -> Request:
    return Request(request_id=1, protocol=PROTOCOL_VERSION, client_id="shop/till", body=body)


@pytest.mark.parametrize(
    ("register", "given"),
    [(command, (LIST, STATE)), (user_command, (LIST, STATE, "shop")), (handler, (LIST, "shop/till"))],
)
def test_a_decision_gets_the_body_and_the_state_or_the_user_or_the_address(register: Any, given: tuple) -> None:
    decided = Decision((), done)
    seen = []
    kind, handle = register(ListTopics, lambda *arguments: seen.append(arguments) or decided)

    assert kind is ListTopics
    assert handle(request(), STATE) is decided
    assert seen == [given]


def test_a_command_in_steps_is_not_taken_before_its_turn() -> None:
    def decide(body: ListTopics, state: ShardState, user: str) -> Any:
        yield 7
        return Decision((), lambda _: TopicList(topics=[], next=[user]))

    kind, handle = user_command(ListTopics, lambda *asked: Stepwise(decide(*asked)))
    outcome = handle(request(), STATE)

    assert kind is ListTopics
    assert isinstance(outcome, Stepwise)
    assert next(outcome.steps) == 7
    with pytest.raises(StopIteration) as ended:
        next(outcome.steps)
    assert ended.value.value.answer(STATE).next == ["shop"]


def test_a_command_in_steps_is_refused_if_its_topic_was_created_again_meanwhile() -> None:
    def decide(body: PruneTopic, state: ShardState, user: str) -> Any:
        yield 7
        return Decision((), done)

    state = ShardState(0)
    state.apply(e.TopicCreated(topic_id=1, topic="orders", segments=1, token="t1"))
    _, handle = user_command(PruneTopic, lambda *asked: Stepwise(decide(*asked)))
    outcome = handle(request(PruneTopic(topic="orders", token="t2", topic_id=1)), state)
    assert isinstance(outcome, Stepwise)
    next(outcome.steps)
    state.apply(e.TopicDeleted(topic_id=1, token="t3"))
    state.apply(e.TopicCreated(topic_id=2, topic="orders", segments=1, token="t4"))

    refusal = complete(outcome.steps)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "topic 'orders' was deleted and created again: it has id 2, and the request is for id 1"
