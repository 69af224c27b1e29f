"""Every promise that the checker judges: a run that keeps it passes, and the same run with one change fails.

The simulation finds some of these violations only with a planted bug, which may fail elsewhere first. Here the checker gets the
ledger and the deliveries of a leader that breaks one promise.
"""

from collections.abc import Callable
from operator import methodcaller as do
from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.chunk_writer.builder import ChunkBuilder
from headgate import ConsumedRecord
from headgate.ledger import chunk
from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from headgate.model.headers import Headers
from shard.state.shard_state import ShardState
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.import_program import IMPORT_KEY
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.leadership_checker import WRITER
from tests.simulation.rare_clients import headers_of
from tests.support.samples.ledgers import WrittenLedger
from tests.support.worlds.one_shard import BEGAN_MS

pytestmark = pytest.mark.virtual_time(start=1000)
KEY = b"k"


class CheckedLedger(WrittenLedger):
    """A ledger whose chunks are checked; a topic with one segment, and a subscription with two consumers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.checker = InvariantChecker()
        self.add(e.TermStarted(leader_epoch=1, instance="d1"))
        self.orders = self.topic()
        self.billing = self.subscribe(self.orders, "STREAM", {0: 0})
        self.register("a", commits=False)
        self.register("b")

    @property
    def names(self) -> tuple[str, str]:
        return f"t{self.orders}", f"s{self.billing}"

    def commit(self) -> int:
        """Write the chunk, and check it."""
        number = super().commit()
        writer = WRITER.set("d1")
        try:
            self.checker.check_write(chunk_path(0, number), self.path(number).read_bytes(), before=None)
        finally:
            WRITER.reset(writer)
        return number

    def folded(self) -> ShardState:
        """Return the state that a daemon has after reading all chunks."""
        state = ShardState(0)
        for number in range(1, self.state.chunk + 1):
            found = chunk.decode(self.path(number).read_bytes(), shard=0, number=number)
            state.apply_all(found.entries, chunk=number, at_ms=found.header.at_ms)
        return state

    def about(self, entry: type[e.AnyEntry], commits: bool = True, **fields: object) -> None:
        """Add an entry about the subscription, by default in a chunk of its own."""
        self.add(entry(topic_id=self.orders, subscription_id=self.billing, **fields))  # type: ignore[call-arg]
        if commits:
            self.commit()

    def register(self, consumer: str, incarnation: int = 1, *, commits: bool = True) -> None:
        """Register a consumer."""
        client_id = f"{consumer}-{incarnation}"
        self.about(e.ConsumerRegistered, commits, consumer=consumer, incarnation=incarnation, client_id=client_id)

    def records(self, *counters: int, key: bytes = KEY, segment: int = 0, gap: int = 0, headers: Headers = ()) -> None:
        """Store records in a chunk of their own; ``gap``: offsets that are left out."""
        self.store(self.orders, segment, len(counters))
        rows = self._builder.records
        for index, counter in enumerate(counters, start=len(rows.key) - len(counters)):
            rows.key[index], rows.value[index] = key, b"%d" % counter
            rows.offset[index] += gap
            rows.headers[index] = headers
        self.commit()

    def grant(self, segment: int, consumer: str, generation: int, **buckets: int) -> None:
        """Grant a segment, or some of its buckets, in a chunk of its own."""
        self.about(e.SegmentGranted, segment=segment, consumer=consumer, generation=generation, **buckets)

    def release(self, segment: int, generation: int, reason: str = "confirmed") -> None:
        """Release a segment, in a chunk of its own."""
        self.about(e.SegmentReleased, segment=segment, generation=generation, reason=reason)

    def deliver(self, *offsets: int, generation: int = 1, program: str = "a-1") -> None:
        """Deliver records as they are stored in segment 0."""
        for offset in offsets:
            key, value, _ = self.checker.records_by_offset[self.names[0], 0, offset]
            self.deliver_as(key, value, 0, offset, generation, program)

    def deliver_as(
        self, key: bytes, value: bytes, segment: int, offset: int, generation: int = 1, program: str = "a-1"
    ) -> None:
        """Deliver any record."""
        record = ConsumedRecord(self.names[0], segment, offset, key, value, 0, generation)
        self.checker.check_delivery(*self.names, "STREAM", program, record)

    def acknowledged(self, end_offset: int, segment: int = 0) -> None:
        """Acknowledge a segment up to an offset, in a chunk of its own."""
        self.acknowledge(self.orders, self.billing, (segment, 0, end_offset))
        self.commit()

    def drained(self, segment: int) -> None:
        """Record that a segment is drained, in a chunk of its own."""
        self.about(e.SegmentsDrained, segments=[segment], seek_generation=0)

    def divide(self, segment: int) -> None:
        """Split a segment, in a chunk of its own."""
        self.split(self.orders, segment)
        self.commit()

    def add_and_commit(self, entry: e.AnyEntry) -> None:
        """Add an entry, in a chunk of its own."""
        self.add(entry)
        self.commit()

    def write_empty(self, at_ms: int) -> None:
        """Check a chunk of a time, which is not added."""
        data = ChunkBuilder().encode(shard=0, number=self.state.chunk + 1, leader_epoch=1, at_ms=at_ms)
        self.checker.check_write(chunk_path(0, self.state.chunk + 1), data, before=None)

    def write_again(self, number: int, before: bytes | None = None) -> None:
        """Check a chunk once more."""
        self.checker.check_write(chunk_path(0, number), self.path(number).read_bytes(), before=before)

    def forget_everything(self) -> None:
        """Continue with a checker that has seen nothing."""
        self.checker = InvariantChecker()

    def read_parent(self) -> None:
        """Store, deliver, acknowledge and split segment 0, so that its children may be granted."""
        self.records(0, 1)
        self.grant(0, "a", 1)
        self.deliver(0, 1)
        self.divide(0)
        self.acknowledged(2)
        self.release(0, 1)
        self.drained(0)


@pytest.fixture
async def ledger(tmp_path: Path) -> CheckedLedger:
    return CheckedLedger(tmp_path)


def refused(text: str, act: Callable[[], object]) -> None:
    """Require that ``act`` violates an invariant, and how."""
    with pytest.raises(BrokenPromiseError, match=text):
        act()


async def test_a_run_that_keeps_every_promise_passes(ledger: CheckedLedger) -> None:
    ledger.read_parent()
    ledger.grant(1, "a", 2)
    ledger.grant(2, "b", 3)
    ledger.release(1, 2)
    ledger.grant(1, "b", 4)
    ledger.checker.check_nothing_lost(ledger.names[0], {KEY: [0, 1]})
    ledger.checker.check_everything_delivered(*ledger.names)
    ledger.checker.check_state(ledger.folded(), "d1")

    assert ledger.checker.chunks == ledger.state.chunk


BROKEN = {
    # One holder per segment and bucket
    "two holders of a segment": ("0 granted to b while a holds 0", do("grant", 0, "a", 1), do("grant", 0, "b", 2)),
    "two holders of a bucket": (
        "granted to b while a holds",
        do("grant", 0, "a", 1, first_bucket=0, end_bucket=128),
        do("grant", 0, "b", 2),
    ),
    "a generation that does not rise": (
        "is granted at generation 2, and 2 was",
        do("grant", 0, "a", 2),
        do("release", 0, 2),
        do("grant", 0, "b", 2),
    ),
    "a delivery of an earlier generation": (
        "of generation 1 was delivered after generation 2",
        do("records", 0, 1),
        do("deliver", 0, generation=2),
        do("deliver", 1, generation=1),
    ),
    # No grant before ancestors
    "a child before its parent": (
        "segment 1 granted before its ancestor 0 was drained",
        do("records", 0, 1),
        do("divide", 0),
        do("grant", 1, "a", 1),
    ),
    "a grandchild before its grandparent, whose parent is empty": (
        "granted before its ancestor 0 was drained",
        do("records", 0),
        do("divide", 0),
        do("divide", 1),
        do("grant", 3, "a", 1),
    ),
    "a drained segment that is granted": (
        "segment 0 was granted after it was drained",
        do("read_parent"),
        do("grant", 0, "a", 2),
    ),
    # First deliveries in produced order
    "a later record first": (
        "b'k' #0 first delivered after #1",
        do("records", 0, 1),
        do("deliver", 1),
        do("deliver", 0),
    ),
    "a record with another value": (
        "was delivered from 0:0, which holds another record",
        do("records", 0),
        do("deliver_as", KEY, b"7", 0, 0),
    ),
    "a record from another place": (
        "was delivered from 0:1, which holds another record",
        do("records", 0),
        do("deliver_as", KEY, b"1", 0, 1),
    ),
    "lost headers": (
        "b'0/1' #3 is stored with headers",
        do("records", 0, key=b"0/1", headers=headers_of(b"0/1", 0)),
        do("records", 3, key=b"0/1"),
    ),
    "headers of another record": (
        "b'0/1' #3 is stored with headers",
        do("records", 0, key=b"0/1", headers=headers_of(b"0/1", 0)),
        do("records", 3, key=b"0/1", headers=headers_of(b"0/1", 6)),
    ),
    "records of a key out of order": ("b'k' #1 stored after #2", do("records", 0, 2), do("records", 1)),
    "a record that is stored twice": ("b'k' #0 stored after #0", do("records", 0), do("records", 0)),
    "an import that skips a record": (
        "the import stored #2 after #0",
        do("records", 0, key=IMPORT_KEY),
        do("records", 2, key=IMPORT_KEY),
    ),
    "a device whose record is skipped, and another one repeated": (
        "#2 stored after #0",
        do("records", 0, 0, key=b"device/1"),
        do("records", 2, key=b"device/1"),
    ),
    # Acknowledged means stored, exactly once
    "a record that is acknowledged before it is delivered": (
        r"\(0, 1\) is acknowledged, and was never handled",
        do("records", 0, 1),
        do("deliver", 0),
        do("acknowledged", 2),
    ),
    # The ledger
    "a chunk that is written twice": ("chunk 1 of shard 0 was written twice", do("write_again", 1, before=b"chunk")),
    "a missing chunk": (
        "shard 0: chunk 2 follows chunk 0",
        do("barrier"),
        do("forget_everything"),
        do("write_again", 2),
    ),
    "a term of an epoch that is not the next one": (
        "chunk 2 of epoch 1 after epoch 1",
        do("add_and_commit", e.TermStarted(leader_epoch=1, instance="d2")),
    ),
    "an offset that is left out": ("offset 1 in segment 0, not 0", do("records", 0, gap=1)),
    "a chunk of the future": ("is of the future: 1767226600001 ms", do("write_empty", BEGAN_MS + 1_000_001)),
    "ledger time that falls": (
        "chunk 2 of shard 0 is of 999 ms, and the one before it of 1000 ms",
        do("write_empty", 999),
    ),
    # Retention
    "a segment that is pruned before it is read": (
        "segment 0 was pruned at 0 of 1",
        do("records", 0),
        do("divide", 0),
        do("prune", 1, 0),
        do("commit"),
    ),
    "data of a segment that exists": (
        r"data of segments \{0\} was deleted, and they still exist",
        do("add_and_commit", e.DataDeleted(topic_id=1, segments=[0])),
    ),
    "a name that loses its source position": (
        "producer 'import' has lost its source position b'1'",
        do("add", e.ProducerOpened(producer_id=7, producer_epoch=0, token="open", name="import")),
        do(
            "add_and_commit",
            e.RecordsStored(topic_id=1, count=0, placements=[], size_bytes=0, producer_id=7, source_position=b"1"),
        ),
        do("add_and_commit", e.ProducerDeleted(producer_id=7, token="delete")),
    ),
}
"""What is broken → what the checker says, and the steps, of which the last one breaks it."""


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
async def test_a_broken_promise_is_noticed(case: tuple, ledger: CheckedLedger) -> None:
    assert (ledger.orders, ledger.billing) == (1, 2)
    says, *before, last = case
    for step in before:
        step(ledger)

    refused(says, lambda: last(ledger))


async def test_the_judge_of_client_histories_sees_what_was_sent_and_delivered(ledger: CheckedLedger) -> None:
    ledger.records(0, 1)
    for counter in (1, 0):
        ledger.checker.clients.sent(ledger.names[0], KEY, counter, "p")
    ledger.deliver(0, 1)
    ledger.deliver(0, program="b-1")  # A repeated delivery is no violation.
    refused(
        "out of order: b'k' #1 of key b'k' came after b'k' #0, which p sent later",
        lambda: ledger.checker.clients.check([]),
    )


async def test_a_record_that_is_lost_or_never_delivered(ledger: CheckedLedger) -> None:
    ledger.records(0, 2)
    ledger.deliver(0)

    refused(
        r"\[1\] was committed and is lost", lambda: ledger.checker.check_nothing_lost(ledger.names[0], {KEY: [0, 1]})
    )
    refused("1 records never delivered", lambda: ledger.checker.check_everything_delivered(*ledger.names))


async def test_a_position_falls_only_by_a_seek(ledger: CheckedLedger) -> None:
    ledger.records(0, 1, 2)
    ledger.deliver(0, 1, 2)
    ledger.checker.positions[0, ledger.billing, 0] = 3  # as if a leader had acknowledged all three, and forgotten it
    refused("the position of segment 0 fell to 2", lambda: ledger.acknowledged(2))
    ledger.seek(ledger.orders, ledger.billing, {0: 0})
    ledger.commit()

    ledger.acknowledged(1)


async def test_only_a_leader_of_an_earlier_term_may_write_a_number_that_is_taken(ledger: CheckedLedger) -> None:
    ledger.records(0)
    state = ledger.folded()
    state.topics_by_id[ledger.orders].tails[0].next_offset += 1
    differs = "the state of d1 differs from the ledger in topics"
    refused(differs, lambda: ledger.checker.check_state(state, "d1", leads=True))
    state.term = replace(state.term, leader_epoch=state.term.leader_epoch - 1)

    ledger.checker.check_state(state, "d1", leads=True)
    refused("the state of d1 differs from the ledger in", lambda: ledger.checker.check_state(state, "d1"))
