"""Decide on which shard a name becomes a topic, once a cluster has more shards than before. Pure.

Two shards must never have one name. The ledger of each shard has the numbers of shards, so this holds across leaders:

1. A shard whose ledger has a longer list creates no topic for a client with a shorter one.
2. A leader that knows a shorter list than the client creates nothing yet: the client repeats its request.
3. A shard creates only names that belong to it by the present number. So if its ledger has the list and not a name of
   others, it never gets that, and `FindTopic` says so. A client creates a topic once all older places have said it.
4. The entry that stores a list lets ids begin above all earlier ones, so a name that was deleted on one shard and
   created on another one has another id.
"""

from collections.abc import Sequence

from headgate.model.hashing import ShardMap
from headgate.protocol.replies import AnyReplyBody, TopicPlace
from headgate.protocol.requests import FindTopic
from shard.requests.handlers import Decision
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal


def find_place(request: FindTopic, _: ShardState) -> Decision:
    """Say whether this shard has a topic. The answer leaves once everything is durable that it rests on."""

    def answer(state: ShardState) -> AnyReplyBody:
        topic = state.topics.get(request.topic)
        return TopicPlace(topic_id=None if topic is None else topic.topic_id, shards=list(state.ids.shard_counts))

    return Decision((), answer)


def refuse_creation(topic: str, asked: Sequence[int], state: ShardState) -> Refusal | None:
    """Return why this shard, which has no such topic, does not create it for a client that knows the list ``asked``."""
    known = state.ids.shard_counts
    if len(asked) > max(1, len(known)):
        return Refusal("unavailable", f"shard {state.shard} has yet to store that the cluster has {asked[-1]} shards")
    if not known:
        return None
    if tuple(asked) != known:
        return Refusal("invalid", f"the cluster has {known[-1]} shards by now; a client that knows creates the topic")
    home = ShardMap(known).candidates(topic)[0]
    return None if home == state.shard else Refusal("invalid", f"topic {topic!r} belongs to shard {home}")
