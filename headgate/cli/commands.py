"""The names of all commands, and the modules that define them. Imports none of those.

Those of a daemon are in another distribution, which may be missing. They are known by name nevertheless, so that the
error can say what to install.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from headgate.extras import install_daemon

CommandTable = Mapping[str, tuple[str, str]]
"""Name → (module, one line of help). The module defines the command under its name, with ``_`` for ``-``."""

COMMANDS: Final[CommandTable] = {
    "status": ("headgate.cli.cluster.status", "Show daemons, leaders, what is degraded, and the subscriptions."),
    "doctor": ("headgate.cli.cluster.doctor", "Check what clients and daemons need, and say what to do."),
    "topic": ("headgate.cli.topics.topic", "Create, import, inspect, change, copy and delete topics."),
    "produce": ("headgate.cli.records.produce", "Write lines to a topic: newline-delimited JSON, or any text."),
    "shard": ("headgate.cli.cluster.daemons", "List shards with their leaders, and transfer one to another daemon."),
    "daemon": ("headgate.cli.cluster.daemons", "List daemons, and empty one before its maintenance."),
    "cluster": ("headgate.cli.cluster.daemons", "Raise the cluster's feature level, and give it more shards."),
    "producer": ("headgate.cli.records.producer", "List, describe and delete named producers."),
    "consume": ("headgate.cli.records.consume", "Print the records of a topic as JSON lines."),
    "read": ("headgate.cli.records.read", "Print stored records without a subscription."),
    "export": ("headgate.cli.records.export", "Add the records of a topic to a Delta, Iceberg or Parquet table."),
    "backlog": (
        "headgate.cli.subscriptions.backlog",
        "Show unacknowledged records, their age, and the estimated time to drain.",
    ),
    "subscription": (
        "headgate.cli.subscriptions.subscription",
        "Create, list, describe, move and delete subscriptions.",
    ),
    "consumer": ("headgate.cli.subscriptions.consumer", "List and evict the consumers of subscriptions."),
    "events": ("headgate.cli.cluster.events", "Print what has changed: terms, splits, merges, evictions, parked keys."),
    "explain": ("headgate.cli.subscriptions.explain", "Explain why a consumer has a segment, or not."),
    "migrate": ("headgate.cli.migrate", "Take over the positions of a KCL application."),
    "perf": ("headgate.cli.records.perf", "Measure how fast a cluster stores and delivers records."),
    "plan": ("headgate.cli.subscriptions.explain", "Show what a split, a merge or a consumer change would move."),
    "verify-history": ("headgate.cli.verify_history", "Judge what producers and consumers have recorded."),
}

DAEMON_COMMANDS: Final[CommandTable] = {
    "up": ("controller.cli.up", "Start a complete node: ZooKeeper, an MQTT broker, Spark and a daemon."),
    "run": ("controller.cli.run", "Run a daemon against existing servers."),
    "check-config": ("controller.cli.run", "Check a daemon's settings and print them."),
    "access": ("controller.cli.access", "Show, explain and export who may do what."),
    "ledger": ("controller.cli.ledger", "Copy a ledger to another store, or check one."),
    "http": ("controller.cli.access", "Make tokens for metrics and status over HTTP."),
    "drain": ("controller.cli.programs", "Count backlogs and compact chunks with Spark."),
    "snapshot": ("controller.cli.programs", "Write the snapshots of shards that are due, once."),
    "deploy-files": ("controller.cli.deploy_files", "Write units, alerts, dashboards and examples."),
}
_EXTRAS: Final = {"up": "[up]", "drain": "[spark]"}


def daemon_is_installed() -> bool:
    return find_spec("controller") is not None


def installation_hint(name: str) -> str:
    """Return what to install for the command ``name`` of a daemon."""
    return f"'{name}' is a command of the daemon: {install_daemon(_EXTRAS.get(name, ''))}"
