"""What destroys something asks first on a terminal, and needs `--yes` elsewhere."""

import json
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import asdict

from headgate.views.topics import PruneResult
from tests.headgate.cli.conftest import Invoke
from tests.headgate.cli.records.test_producer import info
from tests.headgate.cli.subscriptions.test_parking import parked_key
from tests.support.fakes.cli_client import MOVES, FakeAdmin, FakeCluster, InProcessContext, segment, subscription, topic

SEEK = ("subscription", "seek", "orders", "billing", "--to", "earliest")
DESTRUCTIVE = [
    (("topic", "delete", "orders"), "orders: 1 segment, 12 records (2.0 kB); subscriptions: billing; 1 connected"),
    (("topic", "prune", "orders"), "would be pruned"),
    (("subscription", "delete", "orders", "billing"), "positions in 2 segments; 1 connected consumer, so it"),
    (SEEK, "3 delivered again"),
    (("consumer", "evict", "orders", "billing", "reader-1"), "connected; segments: 0"),
    (("producer", "delete", "import-1"), "line 5"),
    (("subscription", "drop", "orders", "billing", "k1"), "k1 of subscription billing of orders with 2 parked record"),
]
each_command = pytest.mark.parametrize(
    ("command", "shown"), DESTRUCTIVE, ids=[" ".join(words[:2]) for words, _ in DESTRUCTIVE]
)


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    only = segment(0, 0, 0xFFFF, next_offset=12, size_bytes=2000)
    cluster.topics["orders"] = topic("orders", only, subscriptions=("billing",))
    cluster.subscriptions.append(subscription("orders", "billing"))
    cluster.producers = [info("import-1", shard=0)]
    cluster.parked = [parked_key(b"k1", 2)]
    return cluster


def changes(cluster: FakeCluster) -> list[object]:
    """Return the requests that changed something."""
    return [call for call in cluster.calls if not getattr(call, "dry_run", False)]


@each_command
def test_without_a_terminal_nothing_is_asked_or_sent(
    command: tuple[str, ...], shown: str, invoke: Invoke, orders: FakeCluster
):
    refused = invoke(*command, stdin="y\n")

    assert (2, "", []) == (refused.exit_code, refused.stdout, orders.calls)
    assert refused.stderr.startswith("headgate: this destroys something, and there is no terminal to ask: add --yes")


@each_command
def test_a_dry_run_only_shows_what_would_go_and_yes_on_a_terminal_executes_what_was_shown(
    command: tuple[str, ...], shown: str, invoke: Invoke, orders: FakeCluster, context: InProcessContext
):
    tried = invoke(*command, "--dry-run")
    assert (0, True, []) == (tried.exit_code, shown in tried.output, changes(orders)), tried.stderr
    context.is_terminal = True
    done = invoke(*command, stdin="y\n")
    assert 0 == done.exit_code, done.stderr
    assert shown in done.stderr
    assert 1 == len(changes(orders))


@each_command
@pytest.mark.parametrize("answer", ["n\n", "\n", ""], ids=["no", "nothing", "end"])
def test_any_other_answer_changes_nothing(
    command: tuple[str, ...], shown: str, answer: str, invoke: Invoke, orders: FakeCluster, context: InProcessContext
):
    context.is_terminal = True
    declined = invoke(*command, stdin=answer)

    assert 1 == declined.exit_code
    assert declined.stderr.splitlines()[-1].endswith("because the answer was not y")
    assert [] == changes(orders)


@pytest.mark.parametrize("command", [words for words, _ in DESTRUCTIVE])
def test_what_is_destroyed_is_what_was_shown_and_its_id_says_which(
    command: tuple[str, ...], invoke: Invoke, orders: FakeCluster, context: InProcessContext
):
    """The leader refuses it for another one of the name that was created, or whose program was started, meanwhile."""
    context.is_terminal = True
    invoke(*command, stdin="y\n")

    [sent] = changes(orders)
    ids = {"topic": {"topic_id": 1}, "subscription": {"topic_id": 1, "subscription_id": 5}}
    ids |= {"consumer": ids["subscription"] | {"consumer_incarnation": 1}, "producer": {"producer_id": 7}}
    ids["drop"] = ids["subscription"] | {"parking": 4}
    assert ids[command[1] if command[1] in ids else command[0]].items() <= asdict(sent).items()


@pytest.mark.parametrize("shown", [(), (1,)])
def test_what_was_not_shown_is_not_pruned(
    shown: tuple[int], invoke: Invoke, orders: FakeCluster, context: InProcessContext, monkeypatch: pytest.MonkeyPatch
):
    asked = AsyncMock(return_value=PruneResult(segments=shown, retained=(), abandoned=()))
    monkeypatch.setattr(FakeAdmin, "prune_topic", asked)
    context.is_terminal = True
    assert 0 == invoke("topic", "prune", "orders", stdin="y\n").exit_code
    pruned = {"dry_run": not shown, "shown": shown}
    assert [{"dry_run": True}, pruned] == [each.kwargs for each in asked.await_args_list]


def test_a_seek_that_changes_no_position_asks_too(invoke: Invoke, orders: FakeCluster, context: InProcessContext):
    """What was acknowledged behind the positions is delivered again."""
    context.is_terminal, orders.moves = True, MOVES[2:]

    assert 1 == invoke(*SEEK, stdin="n\n").exit_code
    assert [] == changes(orders)


@each_command
def test_a_dry_run_shows_what_would_go_and_changes_nothing(
    command: tuple[str, ...], shown: str, invoke: Invoke, orders: FakeCluster
):
    for words in (("--dry-run",), ("--dry-run", "--yes")):
        tried = invoke(*command, *words)

        assert 0 == tried.exit_code, tried.stderr
        assert shown in (tried.stderr if command[1] == "drop" else tried.stdout)
        assert [] == changes(orders)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("topic", "delete", "orders"), {"topic": "orders"}),
        (("subscription", "delete", "orders", "billing"), {"topic": "orders", "subscription": "billing"}),
        (("producer", "delete", "import-1"), {"producer": "import-1"}),
    ],
    ids=["topic", "subscription", "producer"],
)
def test_a_deletion_is_one_json_document(
    command: tuple[str, ...], names: dict[str, str], invoke: Invoke, orders: FakeCluster
):
    done = json.loads(invoke(*command, "--yes", "--json").stdout)
    tried = invoke(*command, "--dry-run", "--json")

    assert names | {"deleted": True} == done
    assert names.items() <= json.loads(tried.stdout).items()
    assert json.loads(tried.stdout)["deleted"] is False
    assert "" == tried.stderr
