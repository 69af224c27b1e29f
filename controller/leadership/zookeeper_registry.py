"""The nodes of a cluster in ZooKeeper beside its queues: live instances, those in maintenance, and the config.

The owner of the session says when there is contact, and how to pause after a failure.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from kazoo.exceptions import NodeExistsError, NoNodeError

from controller.leadership.election import ElectionsUnreachableError
from controller.leadership.zookeeper_connection import FAILURES, RefusedError, ZooKeeperConnection
from controller.leadership.zookeeper_nodes import ZooKeeperNodes
from headgate.errors import ConfigError

REGISTRATION_CHECK_INTERVAL_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """What the registry needs from the owner of the session."""

    in_contact: asyncio.Event
    set_problem: Callable[[str, str | None], None]
    pause_after: Callable[[str, BaseException], Awaitable[None]]
    report_foreign: Callable[[str, str, str], None]


class ZooKeeperRegistry:
    """The registry of one session; see `controller.leadership.election.Elections`."""

    def __init__(self, connection: ZooKeeperConnection, nodes: ZooKeeperNodes, root: str, owner: SessionOwner) -> None:
        self._connection = connection
        self._nodes = nodes
        self._root = root
        self._owner = owner
        self._written: bytes | None = None
        """The data of the own instance, as it was written last."""

    async def instances(self) -> dict[str, bytes] | None:
        folder = f"{self._root}/instances"
        if not self._owner.in_contact.is_set():
            return None
        found: dict[str, bytes] = {}
        try:
            for name in await self._connection.call("get_children", folder):
                with suppress(NoNodeError):
                    found[name] = (await self._connection.call("get", f"{folder}/{name}"))[0]
        except FAILURES:
            return None
        return found

    async def maintenance(self) -> frozenset[str] | None:
        if not self._owner.in_contact.is_set():
            return None
        try:
            return frozenset(await self._connection.call("get_children", f"{self._root}/maintenance"))
        except NoNodeError:
            return frozenset()
        except FAILURES:
            return None

    async def set_maintenance(self, name: str, *, on: bool) -> None:
        folder = f"{self._root}/maintenance"
        if not self._owner.in_contact.is_set():
            raise ElectionsUnreachableError("ZooKeeper cannot be reached; try again")
        try:
            await self._nodes.ensure(folder)
            if on:
                with suppress(NodeExistsError):
                    await self._connection.call("create", f"{folder}/{name}", b"")
            else:
                with suppress(NoNodeError):
                    await self._connection.call("delete", f"{folder}/{name}")
        except RefusedError as error:
            raise ElectionsUnreachableError(str(error)) from error
        except FAILURES as error:
            raise ElectionsUnreachableError(f"ZooKeeper did not store it: {error!r}; try again") from error

    async def keep_registered(self, name: str, data: bytes) -> None:
        """Register the instance again and again; cancel it to stop."""
        path = f"{self._root}/instances/{name}"
        warned = False
        while True:
            await self._owner.in_contact.wait()
            try:
                registered = await self._register(path, data)
                if not registered and not warned:
                    warned = await self._report_occupied(name, path)
            except FAILURES as error:
                await self._owner.pause_after(path, error)
                continue
            self._owner.set_problem(path, None)
            await asyncio.sleep(REGISTRATION_CHECK_INTERVAL_SECONDS)

    async def cluster_config(self, default: dict[str, Any]) -> dict[str, Any]:
        while True:
            await self._owner.in_contact.wait()
            path = f"{self._root}/config"
            try:
                data = await self._read_or_create(path, json.dumps(default, sort_keys=True).encode())
            except FAILURES as error:
                await self._owner.pause_after(path, error)
                continue
            self._owner.set_problem(path, None)
            try:
                config = json.loads(data)
            except ValueError as error:
                raise ConfigError(f"ZooKeeper node {path} is not JSON: {error}") from error
            if not isinstance(config, dict):
                raise ConfigError(f"ZooKeeper node {path} is not a JSON object")
            return config

    async def close_nodes(self) -> None:
        """Give the nodes that no other activity looks at again to the present user."""
        activity = "close nodes"
        while True:
            await self._owner.in_contact.wait()
            try:
                await self._nodes.ensure(f"{self._root}/instances")
                await self._nodes.ensure(f"{self._root}/maintenance")
                await self._nodes.close(f"{self._root}/config")
            except FAILURES as error:
                await self._owner.pause_after(activity, error)
                continue
            self._owner.set_problem(activity, None)
            return

    async def _register(self, path: str, data: bytes) -> bool:
        """Return whether the instance is registered under this session, with ``data``."""
        stat = await self._connection.call("exists", path)
        if stat is not None:
            registered = bool(stat.ephemeralOwner == self._connection.session_id)
            if registered:
                await self._nodes.close(path)
                if self._written != data:
                    await self._connection.call("set", path, data)
                    self._written = data
            return registered
        await self._nodes.ensure(f"{self._root}/instances")
        with suppress(NodeExistsError):
            await self._connection.call("create", path, data, ephemeral=True)
            self._written = data
            return True
        return False

    async def _report_occupied(self, name: str, path: str) -> bool:
        """Report who has the node of this instance; return whether anything still has it."""
        if (stat := await self._connection.call("exists", path)) is None:
            return False
        try:
            strangeness = await self._nodes.strangeness(path, stat)
        except NoNodeError:
            return False
        if strangeness is None:
            log.warning("instance.name_in_use", instance=name, advice="an older session has yet to expire")
        else:
            self._owner.report_foreign("instance.foreign_node", path, strangeness)
        return True

    async def _read_or_create(self, path: str, data: bytes) -> bytes:
        await self._nodes.ensure(self._root)
        with suppress(NodeExistsError):
            await self._connection.call("create", path, data)
        await self._nodes.close(path)
        stored: bytes = (await self._connection.call("get", path))[0]
        return stored
