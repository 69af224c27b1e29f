"""The commands that this distribution adds to `headgate`. Imports none of them: see `headgate.cli.commands`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headgate.cli.commands import CommandTable

COMMANDS: Final[CommandTable] = {
    "up": ("controller.cli.up", "Start a complete node: ZooKeeper, an MQTT broker, Spark and a daemon."),
    "run": ("controller.cli.run", "Run a daemon against existing servers."),
    "check-config": ("controller.cli.run", "Check a daemon's settings and print them."),
    "access": ("controller.cli.access", "Show, explain and export who may do what."),
    "ledger": ("controller.cli.ledger", "Copy a ledger to another store, or check one."),
    "http": ("controller.cli.http", "Make tokens for metrics and status over HTTP."),
    "drain": ("controller.cli.programs", "Count backlogs and compact chunks with Spark."),
    "snapshot": ("controller.cli.programs", "Write the snapshots of shards that are due, once."),
    "deploy-files": ("controller.cli.deploy_files", "Write units, alerts, dashboards and examples."),
}

CHECKS: Final = "controller.cli.doctor"
"""What `headgate doctor` checks for a daemon: see `headgate.cli.commands`."""
