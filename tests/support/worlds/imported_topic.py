"""An external topic, as the shard's state has it after an import."""

from headgate.model import entries as e
from shard.state.shard_state import ShardState
from shard.state.topic import Topic


def imported_topic(*segments: e.ImportedSegment, positions: e.Positions = "offsets") -> Topic:
    state = ShardState(0)
    entry = e.TopicImported(topic_id=1, topic="t", token="x", segments=list(segments), positions=positions)
    state.apply_all([entry], chunk=1, at_ms=0)
    return state.topics["t"]
