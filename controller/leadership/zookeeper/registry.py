"""The nodes of a cluster in ZooKeeper beside its queues: live instances, those in maintenance, and the config."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
import structlog
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from controller.leadership.election import ElectionsUnreachableError
from controller.leadership.policy.instance_record import MaintenanceRecord, read_maintenance
from controller.leadership.zookeeper.connection import FAILURES, RefusedError, ZooKeeperConnection
from controller.leadership.zookeeper.contact import ZooKeeperContact, ZooKeeperNodes
from headgate.errors import ConfigError

REGISTRATION_CHECK_INTERVAL_SECONDS: Final = 1.0
MAX_REPORTED_NODES: Final = 100
"""Foreign nodes among the instances that are logged and counted, each once."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class ZooKeeperRegistry:
    """The registry of one session; see `controller.leadership.election.Registry`."""

    connection: ZooKeeperConnection
    nodes: ZooKeeperNodes
    root: str
    contact: ZooKeeperContact
    start: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    """Gives a task that runs until the session is closed its name, and starts it."""
    registered: asyncio.Event = field(default_factory=asyncio.Event)
    _registering: asyncio.Task[None] | None = None
    _foreign: set[str] = field(default_factory=set)
    """Nodes that were reported."""

    async def register_instance(self, name: str, data: bytes) -> None:
        if self._registering is not None:
            self._registering.cancel()
        self._registering = self.start(self._keep_registered(name, data), "zookeeper-registration")

    async def instances(self) -> dict[str, bytes] | None:
        folder = f"{self.root}/instances"
        if not self.contact.exists.is_set():
            return None
        found: dict[str, bytes] = {}
        try:
            for name in await self.connection.call("get_children", folder):
                with suppress(NoNodeError):
                    data, stat = await self.connection.call("get", f"{folder}/{name}")
                    if stat.ephemeralOwner:
                        found[name] = data
                    else:
                        self._report_foreign(f"{folder}/{name}", "permanent")
        except FAILURES:
            return None
        return found

    async def maintenance(self) -> frozenset[str] | None:
        if not self.contact.exists.is_set():
            return None
        try:
            folder = f"{self.root}/maintenance"
            names = await self.connection.children(folder)
            records = [(name, await self.connection.call("get", f"{folder}/{name}")) for name in names]
        except FAILURES:
            return None
        return frozenset(name for name, (data, _) in records if read_maintenance(data).on)

    async def set_maintenance(self, name: str, *, on: bool, token: str, new: bool = True) -> bool:
        folder = f"{self.root}/maintenance"
        with self._storing():
            await self.nodes.ensure(folder)
            if not new and name not in await self.connection.children(folder):
                return False
            await self._change_maintenance(f"{folder}/{name}", token, on=on)
        return True

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Raise ElectionsUnreachableError for whatever prevents that the block stores something."""
        if not self.contact.exists.is_set():
            raise ElectionsUnreachableError("ZooKeeper cannot be reached; try again")
        try:
            yield
        except RefusedError as error:
            raise ElectionsUnreachableError(str(error)) from error
        except (*FAILURES, ConfigError) as error:
            raise ElectionsUnreachableError(f"ZooKeeper has not confirmed it: {error!r}; try again") from error

    async def _change_maintenance(self, path: str, token: str, *, on: bool) -> None:
        """Write what follows from the record that is stored; again, if another leader changes it meanwhile."""
        with suppress(NodeExistsError):
            await self.connection.call("create", path, msgspec.json.encode(MaintenanceRecord()))
        while True:
            data, stat = await self.connection.call("get", path)
            changed = read_maintenance(data).after(token, on=on)
            if changed is None:
                return
            with suppress(BadVersionError):
                await self.connection.call("set", path, msgspec.json.encode(changed), version=stat.version)
                return

    async def _keep_registered(self, name: str, data: bytes) -> None:
        """Register the instance again and again; cancel it to stop."""
        path = f"{self.root}/instances/{name}"
        while True:
            await self.contact.complete(path, partial(self._register, name, path, data))
            await asyncio.sleep(REGISTRATION_CHECK_INTERVAL_SECONDS)

    async def cluster_config(self, default: dict[str, Any] | None) -> dict[str, Any]:
        path = f"{self.root}/config"
        return await self.contact.complete(path, partial(self._read_or_create, path, default))

    async def config(self) -> dict[str, Any] | None:
        if not self.contact.exists.is_set():
            return None
        try:
            path = f"{self.root}/config"
            return _decode(path, (await self.connection.call("get", path))[0])
        except (*FAILURES, ConfigError):
            return None

    async def clusters_on(self, ledger_id: str) -> list[str]:
        folder, found = self.root.rpartition("/")[0], []
        for name in await self.contact.complete(folder, partial(self.connection.children, folder)):
            with suppress(*FAILURES, ConfigError):
                root = f"{folder}/{name}"
                config = _decode(root, (await self.connection.call("get", f"{root}/config"))[0])
                if root != self.root and config.get("ledger_id") == ledger_id:
                    found += [root] if await self.connection.children(f"{root}/instances") else []
        return found

    async def change_config(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        with self._storing():
            await self._change_config(f"{self.root}/config", change)

    async def claim_ledger(self, ledger_id: str, **more: Any) -> str:
        def claim(config: dict[str, Any]) -> dict[str, Any] | None:
            return None if "ledger_id" in config else config | {"ledger_id": ledger_id, **more}

        path = f"{self.root}/config"
        return str((await self.contact.complete(path, partial(self._change_config, path, claim)))["ledger_id"])

    async def close_nodes(self) -> None:
        """Give the nodes that no other activity looks at again to the present user."""

        async def close() -> None:
            await self.nodes.ensure(f"{self.root}/instances")
            await self.nodes.ensure(f"{self.root}/maintenance")
            await self.nodes.close(f"{self.root}/config")

        await self.contact.complete("close nodes", close)

    async def _register(self, name: str, path: str, data: bytes) -> None:
        """Register the instance under this session, with ``data``, or report once who has its name."""
        if (stat := await self.connection.call("exists", path)) is None:
            await self.nodes.ensure(f"{self.root}/instances")
            with suppress(NodeExistsError):
                await self.connection.call("create", path, data, ephemeral=True)
                self.registered.set()
        elif stat.ephemeralOwner == self.connection.session_id:
            self.registered.set()
            self._foreign.discard(path)
            await self.nodes.close(path)
            # Not compared with what was written last: a write without a reply may have arrived.
            if (await self.connection.call("get", path))[0] != data:
                await self.connection.call("set", path, data)
        elif path not in self._foreign:
            with suppress(NoNodeError):
                if (strangeness := await self.nodes.strangeness(path, stat)) is not None:
                    self._report_foreign(path, strangeness)
                    self.registered.set()
                else:
                    self._foreign.add(path)
                    advice = "a killed daemon's session ends soon; if another daemon runs, set [instance] name"
                    log.warning("instance.name_in_use", instance=name, advice=advice)

    def _report_foreign(self, path: str, strangeness: str) -> None:
        if path not in self._foreign and len(self._foreign) < MAX_REPORTED_NODES:
            self._foreign.add(path)
            self.contact.report_foreign(path, strangeness)

    async def _read_or_create(self, path: str, default: dict[str, Any] | None) -> dict[str, Any]:
        await self.nodes.ensure(self.root)
        with suppress(NodeExistsError):
            if default is not None:
                await self.connection.call("create", path, _encode(default))
        if default is None and await self.connection.call("exists", path) is None:
            return {}
        await self.nodes.close(path)
        return _decode(path, (await self.connection.call("get", path))[0])

    async def _change_config(
        self, path: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]
    ) -> dict[str, Any]:
        """Store what ``change`` makes of the config, and return what is stored then."""
        while True:
            data, stat = await self.connection.call("get", path)
            config = _decode(path, data)
            if (changed := change(config)) is None:
                return config
            with suppress(BadVersionError):
                await self.connection.call("set", path, _encode(changed), version=stat.version)
                return changed


def _encode(config: dict[str, Any]) -> bytes:
    return json.dumps(config, sort_keys=True).encode()


def _decode(path: str, data: bytes) -> dict[str, Any]:
    try:
        config = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"ZooKeeper node {path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"ZooKeeper node {path} is not a JSON object")
    return config
