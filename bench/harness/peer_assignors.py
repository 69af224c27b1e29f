"""Assignors of other projects, called directly: faust's and kafka-python's, both pure Python.

Their dependencies conflict with ours (faust needs an older click), so they are installed into a
folder in the cache on first use, and that folder is searched last. Only the assignors are called.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from headgate.errors import HeadgateError

VERSIONS = ("faust-streaming==0.15.3", "kafka-python==3.0.12")
TOPIC = "bench"

Held = Mapping[str, Sequence[int]]
"""Consumer → segments it holds."""


def install(progress: Callable[[str], None], versions: Sequence[str] = VERSIONS) -> None:
    """Make ``versions`` importable; takes a minute or more the first time. Raises HeadgateError if pip fails."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "headgate-bench" / "-".join(version.replace("==", "-") for version in versions)
    if not (folder / "complete").exists():
        progress(f"installing {' and '.join(versions)} into {folder}, once")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        done = subprocess.run(
            [*command, "--target", str(folder), *versions], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise HeadgateError(f"pip cannot install {', '.join(versions)}: {done.stderr.strip().splitlines()[-1]}")
        (folder / "complete").touch()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def faust(held: Held, segments: int) -> Callable[[], Any]:
    """Return one timed call of faust's assignor. It changes its input, so call it once."""
    assignment = import_module("faust.assignor.client_assignment").CopartitionedAssignment
    assignor = import_module("faust.assignor.copartitioned_assignor").CopartitionedAssignor
    cluster = {name: assignment(actives=set(keys), topics={TOPIC}) for name, keys in held.items()}

    def assign() -> Any:
        return assignor([TOPIC], cluster, segments, 0).get_assignment()

    return assign


class _Cluster:
    """The cluster metadata that kafka-python's assignor needs."""

    def __init__(self, segments: int) -> None:
        self._segments = set(range(segments))

    def topics(self) -> set[str]:
        """Return the topics."""
        return {TOPIC}

    def partitions_for_topic(self, _: str) -> set[int]:
        """Return the partitions."""
        return self._segments


def kafka(held: Held, segments: int) -> Callable[[], Any]:
    """Return one timed call of kafka-python's sticky assignor. Call it once."""
    module: Any = import_module("kafka.coordinator.assignors.sticky.sticky_assignor")
    partition = import_module("kafka.structs").TopicPartition
    members = {
        name: module.StickyAssignorMemberMetadataV1([TOPIC], [partition(TOPIC, key) for key in keys], 1)
        for name, keys in held.items()
    }
    cluster = _Cluster(segments)

    def assign() -> Any:
        executor = module.StickyAssignmentExecutor(cluster, members)
        executor.perform_initial_assignment()
        executor.balance()
        return executor.current_assignment

    return assign


def faust_owners(found: Any) -> dict[int, str]:
    """Return segment → owner from faust's result."""
    return {key: name for name, each in found.items() for key in each.actives}


def kafka_owners(found: Any) -> dict[int, str]:
    """Return segment → owner from kafka-python's result."""
    return {each.partition: name for name, keys in found.items() for each in keys}
