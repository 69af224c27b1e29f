"""A real cluster: ZooKeeper, a broker, one daemon and, for splits, Spark. Cases share it, with topics of their own."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import msgspec

from clients.conformance.case_runner import CaseFailedError, Step, as_bytes
from controller.settings.sections import SubscriptionSettings
from headgate import Admin, Producer
from trials.cluster import LocalCluster

SUBSCRIPTIONS = SubscriptionSettings(heartbeat_interval_seconds=1.0, grace_seconds=3.0)
"""A consumer that was killed loses its segments after 3 s."""


class RealServer:
    name: ClassVar = "real"

    def __init__(self, folder: Path, *, needs: set[str]) -> None:
        self._needs = needs
        self._cluster = LocalCluster(folder, name="conformance", shards=2, subscriptions=SUBSCRIPTIONS)
        self._stack = AsyncExitStack()
        self._admin: Admin
        self._producer: Producer

    async def __aenter__(self) -> Self:
        cluster = await self._stack.enter_async_context(self._cluster)
        await cluster.start_servers()
        if "spark" in self._needs:
            await cluster.start_spark()
        await cluster.start_daemon("one")
        config = cluster.client_config()
        self._admin = await self._stack.enter_async_context(Admin(config, timeout_seconds=120))
        self._producer = await self._stack.enter_async_context(Producer(config))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def begin(self) -> dict[str, Any]:
        ledger = urlsplit(self._cluster.ledger_url).path
        return {"host": "127.0.0.1", "port": self._cluster.broker.port, "cluster": self._cluster.name, "ledger": ledger}

    async def end(self) -> None:
        """Delete nothing: each case has topics of its own."""

    async def step(self, do: str, step: Step, seconds: float) -> Any:
        """Do an administrator's command: a method of `Admin` with its arguments, or one of those below."""
        own: dict[str, Callable[[Step], Any]] = {
            "produce": self._produce,
            "kill_leader": lambda _: self._cluster.kill("one"),
            "start_leader": lambda _: self._cluster.start_daemon("one"),
        }
        async with asyncio.timeout(seconds * 4):
            if do in own:
                return await own[do](step)
            arguments = dict(step.get("with", {}))
            if "key" in arguments:
                arguments["key"] = as_bytes(arguments["key"])
            while True:
                found = msgspec.to_builtins(await getattr(self._admin, do)(**arguments))
                if "until" not in step or _has(found, step["until"]):
                    return None
                await asyncio.sleep(0.2)

    async def _produce(self, step: Step) -> None:
        """Store the numbers from ``first`` on as values: number n has the key ``key-<n modulo keys>``."""
        values = [str(number) for number in range(step["first"], step["first"] + step["count"])]
        keys = [as_bytes(f"key-{int(value) % step.get('keys', 7)}") for value in values]
        await (await self._producer.send_many(step["topic"], keys, [value.encode() for value in values]))


def _has(found: Any, wanted: dict[str, Any]) -> bool:
    """Whether the lists of ``found`` are as wanted: all elements have the given value."""
    if not isinstance(found, dict):
        raise CaseFailedError(f"until: {found!r:.200} has no fields")
    return all(all(each[name] == value for each in found["segments"]) for name, value in wanted.items())
