"""The stages that ask a large cluster: pages, lists, metrics, and what lies in the object store."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from headgate.errors import HeadgateError
from headgate.process.child_process import ChildProcess, python_module
from scale.sizes import SUBSCRIPTION, topic_name
from scale.trial import Trial

PAGES: Final = {
    "status page": "/",
    "topics page": "/topics",
    "page of a topic": f"/topics/{topic_name(0)}",
    "page of a subscription": f"/topics/{topic_name(0)}/subscriptions/{SUBSCRIPTION}",
    "API cluster": "/api/v1/cluster",
    "API topics": "/api/v1/topics",
    "API topic": f"/api/v1/topics/{topic_name(0)}",
    "API subscriptions": "/api/v1/subscriptions",
}
ROUNDS: Final = 3
"""The longest of these answers counts. Daemons reuse an answer for a second or more."""
PAUSE_SECONDS: Final = 1.0
COMMAND_SECONDS: Final = 120.0


async def ask(trial: Trial) -> None:
    """Ask one daemon for pages and metrics, and the cluster through the library and the command line."""
    daemon = trial.cluster.names[0]
    for name, path in PAGES.items():
        size, seconds = 0, 0.0
        for _ in range(ROUNDS):
            began = time.perf_counter()
            size = len(await trial.cluster.get(daemon, path))
            seconds = max(seconds, time.perf_counter() - began)
            await asyncio.sleep(PAUSE_SECONDS)
        trial.add(name, 1000 * seconds, "ms")
        trial.add(f"{name}, size", size / 1000, "kB")
    await _ask_metrics(trial)
    async with trial.admin as admin:
        questions: dict[str, Callable[[], Awaitable[Any]]] = {
            "describe cluster": admin.describe_cluster,
            "list topics": admin.list_topics,
            "list subscriptions": admin.list_subscriptions,
            "describe a subscription": lambda: admin.describe_subscription(topic_name(0), SUBSCRIPTION),
        }
        for name, question in questions.items():
            with trial.timed_ms(name):
                await question()
    await _ask_command(trial, "headgate status", "status", "--json")


async def _ask_metrics(trial: Trial) -> None:
    """Add size, time and cardinality of the largest metrics page, and the longest delay of a loop."""
    sizes, times, families, series, lags = [], [], 0, 0, []
    for name in trial.cluster.names:
        began = time.perf_counter()
        page = (await trial.cluster.get(name, "/metrics")).decode()
        times.append(time.perf_counter() - began)
        sizes.append(len(page))
        families = max(families, page.count("# TYPE "))
        series = max(series, sum(not line.startswith("#") for line in page.splitlines()))
        lags += list(lag_seconds(page))
    trial.add("metrics page, largest", max(sizes) / 1000, "kB")
    trial.add("metrics page, slowest", 1000 * max(times), "ms")
    trial.add("metrics families", families)
    trial.add("metrics series of a daemon", series)
    trial.add("delay of a daemon's loop, longest bucket so far", 1000 * max(lags), "ms")


def lag_seconds(page: str) -> Iterator[float]:
    """Yield the upper bound of the highest bucket of the loop's delay that is not empty."""
    highest, before = None, 0.0
    for line in page.splitlines():
        if line.startswith("headgate_loop_lag_seconds_bucket{"):
            bound, count = line.split('le="', 1)[1].split('"', 1)[0], float(line.rsplit(" ", 1)[1])
            if count > before:
                highest, before = bound, count
    if highest is not None:
        yield float(highest)


async def _ask_command(trial: Trial, name: str, *words: str) -> None:
    cluster = trial.cluster
    options = ("--config", str(cluster.client_config_path), "--timeout", str(COMMAND_SECONDS))
    log_path = cluster.log_path("commands")
    with trial.timed_ms(name):
        process = await ChildProcess.start(
            *python_module("headgate", *words, *options), log_path=log_path, output_path=cluster.folder / "answer"
        )
        if (code := await process.wait()) != 0:
            raise HeadgateError(f"{name} ended with code {code}: {log_path.read_text(errors='replace').strip()}")


async def measure_store(trial: Trial) -> None:
    """Add what the object store holds, and how long the writing of snapshots took."""
    folder = trial.cluster.folder / "store"
    files = await asyncio.to_thread(lambda: [(path, path.stat().st_size) for path in _files(folder)])
    snapshots = [size for path, size in files if "snapshots" in path.parts]
    chunks = [size for path, size in files if "snapshots" not in path.parts]
    trial.add("chunks and other objects", len(chunks))
    trial.add("size of these", sum(chunks) / 1e6, "MB")
    trial.add("snapshots", len(snapshots))
    trial.add("largest snapshot", max(snapshots, default=0) / 1000, "kB")
    restores = [
        event["restore_seconds"]
        for name in trial.cluster.names
        for event in events_of(trial.cluster.log_path(name))
        if event.get("event") == "term.started"
    ]
    trial.add("terms started", len(restores))
    trial.add_distribution("from election to term", [1000 * seconds for seconds in restores], "ms")
    warnings = [
        event.get("event", "")
        for name in trial.cluster.names
        for event in events_of(trial.cluster.log_path(name))
        if event.get("level") in {"warning", "error", "critical"}
    ]
    for name in sorted(set(warnings)):
        trial.add(f"logged {name}", warnings.count(name))


def events_of(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a daemon's log; lines that are no JSON object, such as those of a library, are left out."""
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        if line.startswith("{") and line.endswith("}"):
            yield json.loads(line)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
