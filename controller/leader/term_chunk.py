"""The first chunk of a term: its entry names the leader, and gives the term its random id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.chunk_writer.builder import ChunkBuilder
from headgate.model import entries as e
from shard.state.shard_state import ShardState


@dataclass(frozen=True, slots=True)
class TermChunk:
    """A chunk that was not written yet."""

    number: int
    at_ms: int
    entry: e.TermStarted
    data: bytes


def first_chunk(
    state: ShardState, *, instance: str, now_ms: Callable[[], int], new_term_id: Callable[[], int]
) -> TermChunk:
    """Return the chunk that makes ``instance`` the leader after ``state``."""
    entry = e.TermStarted(leader_epoch=state.leader_epoch + 1, instance=instance, term_id=new_term_id())
    builder = ChunkBuilder()
    builder.add(entry)
    number, at_ms = state.chunk + 1, max(state.at_ms, now_ms())
    data = builder.encode(
        shard=state.shard,
        number=number,
        leader_epoch=entry.leader_epoch,
        at_ms=at_ms,
        term_id=entry.term_id,
        previous_term_id=state.terms.newest_id,
    )
    return TermChunk(number, at_ms, entry, data)
