"""The modules that are mutated, and the unit tests that have to notice.

Tests of a module are those in the folder that mirrors its package (its own test file first), and then those in the
folders listed in `FALLBACK` for packages whose rules are partly tested through their users.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
PACKAGES = (
    "headgate.model",
    "headgate.protocol",
    "headgate.client.decisions",
    "coordinator.state",
    "coordinator.decisions",
    "coordinator.balancing",
    "coordinator.reporting",
    "controller.state",
    "controller.decisions",
    "controller.*.policy",
    "controller.retention.trim_policy",
    "controller.leadership.broker_contact",
    "controller.leadership.cold_start",
    "controller.leadership.instance_record",
    "controller.leadership.queue_order",
    "controller.leadership.session_secret",
    "controller.leadership.shard_leaders",
    "controller.leadership.shard_load",
    "controller.leadership.spread",
    "controller.leadership.standby",
    "controller.leadership.successors",
    "controller.leadership.transfer_pace",
    "controller.leadership.transitions",
    "drain.backlog.job_size",
    "drain.backlog.merge",
    "drain.backlog.rates",
    "drain.compaction.policy",
)
STATEFUL = (
    "coordinator.drain_poller",
    "headgate.client.acknowledger",
    "headgate.client.consumer",
    "headgate.client.record_feed",
    "headgate.ledger.facts",
    "headgate.reading.chunk_cache",
    "headgate.reading.head",
    "headgate.reading.segment_reader",
    "headgate.reading.tail_poll",
    "controller.leader.shard_controller",
    "drain.service.run_coalescer",
)
"""Modules around the pure packages that keep state in their order, and the facts that they write."""
FALLBACK = {
    "headgate.model": ("tests/headgate/ledger", "tests/coordinator", "tests/controller/decisions", "tests/controller/state"),
    "headgate.protocol": ("tests/headgate/client", "tests/controller/leader", "tests/headgate/cli", "tests/controller/cli"),
    "headgate.client": ("tests/headgate/client",),
    "headgate.reading": ("tests/headgate/client",),
    "coordinator": ("tests/coordinator",),
    "controller.decisions": ("tests/controller/leader",),
    "controller.state": ("tests/controller/decisions", "tests/controller/snapshots", "tests/controller/leader"),
    "controller.leadership": ("tests/controller/leader",),
}  # fmt: skip

DOCUMENT_TESTS = {
    "headgate.model.entries": "tests/headgate/ledger/test_ledger_document.py",
    "headgate.protocol": "tests/headgate/protocol/test_protocol_document.py",
}
"""Package or module → the test that compares its declarations with a document. It executes no line of them."""


def equivalents() -> dict[str, str]:
    """Return key of a mutant → why no test notices it, from `EQUIVALENTS`."""
    tables = tomllib.loads(EQUIVALENTS.read_text())
    return {f"{module}|{key}": reason for module, table in tables.items() for key, reason in table.items()}


def modules_of(package: str, root: Path) -> list[str]:
    """Return the modules that a dotted pattern names: a module, or all modules of a package.

    Raises:
        ValueError: no module has the name.

    """
    pattern = package.replace(".", "/")
    paths = [*root.glob(f"{pattern}.py"), *root.glob(f"{pattern}/**/*.py")]
    names = sorted(".".join(path.relative_to(root).with_suffix("").parts) for path in paths)
    if not names:
        raise ValueError(f"no module or package is called {package}")
    return [name for name in names if not name.endswith("__init__")]


def folders_of_tests(module: str) -> tuple[str, ...]:
    """Return the folders of the tests of a module, the mirroring folder first."""
    mirror = "tests/" + "/".join(module.split(".")[:-1])
    fallback = [
        folder for prefix, folders in FALLBACK.items() if f"{module}.".startswith(f"{prefix}.") for folder in folders
    ]
    return tuple(dict.fromkeys([mirror, *fallback]))


def own_test_file(module: str) -> str:
    """Return the path of the test file that mirrors a module, whether or not it exists."""
    *package, name = module.split(".")
    return f"tests/{'/'.join(package)}/test_{name}.py"


def tests_of_declarations(module: str) -> tuple[str, ...]:
    """Return the test files that read the constants and the defaults of a module, whether or not they exist."""
    documents = [path for prefix, path in DOCUMENT_TESTS.items() if f"{module}.".startswith(f"{prefix}.")]
    return (own_test_file(module), *documents)
