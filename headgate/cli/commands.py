"""The names of all commands, and the modules that define them. Imports none of those.

1. The commands of this distribution are in `COMMANDS`.
2. Another distribution registers commands with an entry point in the group `GROUP`. It names a table like `COMMANDS`,
   in a module that imports nothing heavy, because ``headgate --help`` loads it.
3. A command of this distribution wins over a registered one with the same name.
4. The module of a registered table may name another one in ``CHECKS``. Its ``daemon_findings`` are the checks of
   ``headgate doctor --daemon-config``.
5. A command of the daemon that is not installed is known by name, so that the error can say what to install.
"""

from collections.abc import Mapping
from typing import Final

from headgate.errors import HeadgateError

CommandTable = Mapping[str, tuple[str, str]]
"""Name → (module, one line of help). The module defines the command under its name, with ``_`` for ``-``."""

COMMANDS: Final[CommandTable] = {
    "status": ("headgate.cli.cluster.status", "Show daemons, leaders, what is degraded, and the subscriptions."),
    "doctor": ("headgate.cli.cluster.doctor", "Check what clients and daemons need, and say what to do."),
    "topic": ("headgate.cli.topics.topic", "Create, import, inspect, change, copy and delete topics."),
    "produce": ("headgate.cli.records.produce", "Write lines to a topic: newline-delimited JSON, or any text."),
    "shard": ("headgate.cli.cluster.daemon", "List shards with their leaders, and transfer one to another daemon."),
    "daemon": ("headgate.cli.cluster.daemon", "List daemons, and empty one before its maintenance."),
    "producer": ("headgate.cli.records.producer", "List, describe and delete named producers."),
    "consume": ("headgate.cli.records.consume", "Print the records of a topic as JSON lines."),
    "read": ("headgate.cli.records.read", "Print stored records without a subscription."),
    "backlog": (
        "headgate.cli.subscriptions.backlog",
        "Show unacknowledged records, their age, and the estimated time to drain.",
    ),
    "subscription": (
        "headgate.cli.subscriptions.subscription",
        "Create, list, describe, move and delete subscriptions.",
    ),
    "consumer": ("headgate.cli.subscriptions.consumer", "List and evict the consumers of subscriptions."),
    "explain": ("headgate.cli.subscriptions.explain", "Explain why a consumer has a segment, or not."),
    "plan": ("headgate.cli.subscriptions.explain", "Show what a split, a merge or a consumer change would move."),
}

GROUP: Final = "headgate.commands"
DAEMON_COMMANDS: Final[Mapping[str, str]] = {
    "up": "headgate-daemon[up]",
    "run": "headgate-daemon",
    "check-config": "headgate-daemon",
    "access": "headgate-daemon",
    "ledger": "headgate-daemon",
    "http": "headgate-daemon",
    "drain": "headgate-daemon[spark]",
    "snapshot": "headgate-daemon",
    "deploy-files": "headgate-daemon",
}
"""Command of a daemon → what to install for it."""


def registered_commands() -> dict[str, tuple[str, str]]:
    """Return the commands that other distributions register. Raises HeadgateError if a table cannot be imported."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - no client command needs it

    found: dict[str, tuple[str, str]] = {}
    for point in entry_points(group=GROUP):
        try:
            found |= point.load()
        except ImportError as error:
            name = point.dist.name if point.dist is not None else point.value
            raise HeadgateError(f"the commands of {name} cannot be imported ({error}); install {name} again") from error
    return {name: entry for name, entry in found.items() if name not in COMMANDS}


def daemon_checks() -> str | None:
    """Return the name of the module with the checks of a daemon; None if it is not installed."""
    from importlib import import_module  # noqa: PLC0415
    from importlib.metadata import entry_points  # noqa: PLC0415

    found = (getattr(import_module(point.module), "CHECKS", None) for point in entry_points(group=GROUP))
    return next((name for name in found if name is not None), None)


def installation_hint(name: str) -> str | None:
    """Return what to install for the command ``name``, if it is one of the daemon's; else None."""
    wanted = DAEMON_COMMANDS.get(name)
    return None if wanted is None else f"'{name}' is a command of the daemon: python3 -m pip install '{wanted}'"
