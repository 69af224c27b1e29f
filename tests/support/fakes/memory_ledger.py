"""A ledger in memory that a test grows, trims and damages chunk by chunk."""

from controller.chunk_writer.builder import ChunkBuilder
from controller.snapshots.job import take_snapshot
from controller.snapshots.restore import catch_up
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_folder, chunk_name
from headgate.model import entries as e
from shard.state.shard_state import ShardState
from tests.support.fakes.object_store import FakeStore


class LedgerInMemory:
    """A ledger of one shard with its expected state: terms start at 1 and 6, every other chunk has one command."""

    def __init__(self, chunks: int = 0, store: FakeStore | None = None) -> None:
        self.store = FakeStore() if store is None else store
        self.ledger = Ledger(self.store, 0)
        self.state = ShardState(0)
        self.unusable = 0
        for _ in range(chunks):
            self.grow()

    def grow(self, *entries: e.AnyEntry) -> None:
        number = self.state.chunk + 1
        if not entries and number in {1, 6}:
            entries = (e.TermStarted(leader_epoch=number, instance="a", term_id=number),)
        builder = ChunkBuilder()
        for entry in entries or (e.ProducerOpened(producer_id=number, producer_epoch=0, token=str(number)),):
            builder.add(entry)
        previous_term_id = self.state.terms.newest_id
        self.state.apply_all(builder.entries, chunk=number, at_ms=number)
        data = builder.encode(
            shard=0,
            number=number,
            leader_epoch=1,
            at_ms=number,
            term_id=self.state.terms.newest_id,
            previous_term_id=previous_term_id,
        )
        self.store.objects[f"{chunk_folder(0)}/{chunk_name(number)}"] = data

    def trim(self, below: int) -> None:
        """Write the entry and delete chunks, as a leader does."""
        self.grow(e.LedgerTrimmed(below=below))
        for number in range(1, below):
            if number not in self.state.terms.start_chunks:
                self.lose(number)

    def lose(self, number: int) -> None:
        del self.store.objects[f"{chunk_folder(0)}/{chunk_name(number)}"]

    def on_unusable(self, _: int) -> None:
        self.unusable += 1

    async def snapshot(self) -> int:
        number = await take_snapshot(self.ledger, least_chunks=1, now_ms=0)
        assert number == self.state.chunk
        return number

    async def restored(self) -> tuple[ShardState, int]:
        return await catch_up(self.ledger, ShardState(0), self.on_unusable)
