"""Every command that a document names is run by a document, or by the test that this table names.

A command counts with each of its options. What a block runs on a node is run in `tests/system/test_documented_programs.py`
or `tests/system/test_tutorial.py`. Names of programs other than ``headgate`` are in `tests/test_documented_commands.py`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from headgate.cli.main import main
from tests.support.documents.code_blocks import ROOT, blocks
from tests.support.documents.commands import commands_of, options, simple_commands

DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
OPTIONS_OF_HELP = {"--help", "--version"}
RUN_BY = {
    # They need files, keys or settings of a deployment.
    "access check": "controller/cli/test_access.py",
    "access check --config": "controller/cli/test_access.py",
    "access export": "controller/cli/test_access.py",
    "access export --config": "controller/cli/test_access.py",
    "access list": "controller/cli/test_access.py",
    "access list --config": "controller/cli/test_access.py",
    "check-config": "deploy/test_secure_deployment.py",
    "check-config --config": "deploy/test_secure_deployment.py",
    "deploy-files": "deploy/test_debian_package.py",
    "deploy-files --runbook-url": "controller/cli/test_deploy_files.py",
    "read --key": "system/test_poison_records.py",
    "read --tail": "headgate/cli/records/test_read.py",
    "verify-history": "headgate/client_history/test_recorder.py",
    "http token": "system/test_http_security.py",
    "http token --file": "system/test_http_security.py",
    "run": "deploy/test_secure_deployment.py",
    "run --config": "deploy/test_secure_deployment.py",
    # They start a node, or a process without end.
    "drain serve": "drain/service/test_service.py",
    "status --watch": "system/test_status_watch.py",
    "topic files": "headgate/cli/topics/test_files.py",
    "topic files --json": "headgate/cli/topics/test_files.py",
    "up --data": "controller/cli/test_up.py",
    "up --external": "controller/cli/test_up.py",
    "up --ledger": "controller/cli/test_up.py",
    "up --results": "controller/cli/test_up.py",
    "up --tls": "controller/cli/test_up_tls.py",
    # They run Spark, or read a whole ledger.
    "backlog verify": "system/test_one_node.py",
    "drain job": "system/test_buckets_and_jobs.py",
    "drain job --ledger": "system/test_buckets_and_jobs.py",
    "drain job --out": "system/test_buckets_and_jobs.py",
    "snapshot": "controller/snapshots/test_scheduler.py",
    "snapshot --ledger": "controller/snapshots/test_scheduler.py",
    "snapshot --shard": "controller/snapshots/test_scheduler.py",
    # They need another daemon that takes the shards.
    "daemon drain": "system/test_rolling_restart.py",
    "daemon drain --off": "system/test_rolling_restart.py",
    "shard transfer": "system/test_rolling_restart.py",
    # Others run them on a node, with records that a page does not have.
    "migrate kcl": "system/test_kinesis.py",
    "migrate kcl --dry-run": "system/test_kinesis.py",
    "migrate kcl --stream": "system/test_kinesis.py",
    "migrate kcl --subscription": "system/test_kinesis.py",
    "produce --name": "system/test_named_producers.py",
    "producer delete": "system/test_named_producers.py",
    "producer list": "system/test_named_producers.py",
    "subscription describe --json": "system/test_shared_subscription.py",
    "subscription list": "system/test_one_node.py",
    "subscription list --json": "system/test_one_node.py",
    "topic copy": "headgate/cli/topics/test_transfer.py",
    "topic create --config": "system/test_one_node.py",
    "topic delete": "system/test_one_node.py",
    "topic delete --config": "system/test_one_node.py",
    "topic delete --yes": "system/test_one_node.py",
    "topic import": "system/test_kinesis.py",
    "topic import --format": "system/test_kinesis.py",
    "topic list": "system/test_one_node.py",
    "topic list --json": "system/test_one_node.py",
    "subscription parked": "system/test_parked_keys.py",
    "subscription set --ignored-by-retention": "system/test_one_node.py",
    "subscription set --max-processing": "headgate/cli/subscriptions/test_seek.py",
    "subscription set-order": "system/test_one_node.py",
    "topic copy --to-config": "system/test_one_node.py",
    "topic prune": "system/test_one_node.py",
    "topic set --auto-merge": "system/test_one_node.py",
    "topic set --auto-split": "system/test_one_node.py",
    "topic set --max-bytes": "system/test_one_node.py",
}
"""Command, alone and with each option → the test that runs it, because no document does."""


def without_values(words: Iterable[str]) -> Iterator[str]:
    """Return the names of the command and its groups: the words that are no option, no value and no argument."""
    command: click.Command = main
    values = 0
    for word in words:
        if values:
            values -= 1
        elif word.startswith("-"):
            found = next((each for each in command.params if word in (*each.opts, *each.secondary_opts)), None)
            takes_value = isinstance(found, click.Option) and not found.is_flag and "=" not in word
            values = found.nargs if found is not None and takes_value else 0
        elif isinstance(command, click.Group) and (below := command.get_command(click.Context(command), word)):
            command = below
            yield word
        else:
            return


def uses(words: tuple[str, ...]) -> set[str]:
    """Return what a command line of headgate uses: its command, and its command with each option."""
    name = " ".join(without_values(words[1:]))
    return {name, *(f"{name} {option}" for option in options(words) - OPTIONS_OF_HELP - {"--"})} if name else set()


def test_each_command_of_a_document_is_run_by_a_document_or_by_a_named_test() -> None:
    run: set[str] = set()
    named: defaultdict[str, set[str]] = defaultdict(set)
    for path in DOCUMENTS:
        for words in run_by_document(path):
            run |= uses(words)
        for command in commands_of(path):
            if command.words[0] == "headgate":
                for use in uses(command.words):
                    named[use].add(command.place)

    assert {} == {use: sorted(places) for use, places in named.items() if use not in run | RUN_BY.keys()}
    assert set() == {use for use in RUN_BY if use in run or use not in named}, "RUN_BY has what it need not have"


def run_by_document(path: Path) -> Iterator[tuple[str, ...]]:
    for block in blocks(path):
        if block.runs and block.language in ("console", "bash"):
            lines = (line for line, _ in block.commands()) if block.language == "console" else block.text.splitlines()
            for line in lines:
                yield from (words for words in simple_commands(line.replace("\\\n", " ")) if words[0] == "headgate")


def test_the_named_tests_contain_the_commands() -> None:
    missing = []
    for use, name in RUN_BY.items():
        text = (ROOT / "tests" / name).read_text()
        *_, verb = (word for word in use.split() if not word.startswith("--"))
        if not re.search(rf"[\"' _.]{verb}[\"' .(]", text + name) or not all(
            each in text for each in options(use.split())
        ):
            missing.append(f"{use}: {name}")
    assert [] == missing
