"""Leaves the queues of shards: passes locks on, and deletes the queue nodes of this daemon."""

import asyncio
from contextlib import suppress
from functools import partial

from kazoo.exceptions import NoNodeError

from controller.leadership.policy.queue_order import queue_nodes
from controller.leadership.zookeeper.connection import ZooKeeperConnection
from controller.leadership.zookeeper.contact import ZooKeeperContact
from controller.leadership.zookeeper.succession import Contender, Grant, ZooKeeperSuccession


class QueueExits:
    def __init__(
        self, connection: ZooKeeperConnection, contact: ZooKeeperContact, succession: ZooKeeperSuccession
    ) -> None:
        self._connection = connection
        self._contact = contact
        self._succession = succession
        self._leaving: dict[tuple[str, str], Grant | None] = {}
        """(folder, prefix) of the queue nodes to delete, and to which node the lock passes."""
        self._requested = asyncio.Event()
        self.granted = asyncio.Event()
        """All locks that this daemon passed on are where they should be."""
        self.granted.set()

    def leave(self, contender: Contender, grant: Grant | None) -> None:
        """Leave the queue of ``contender``, which is no longer reconciled. Does not wait."""
        # A create without a response may have left a node: all nodes with this prefix are deleted.
        self._leaving[contender.folder, contender.prefix] = grant
        if grant is not None:
            self.granted.clear()
        self._requested.set()

    async def run(self) -> None:
        """Leave queues while there is contact, until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            for (folder, prefix), grant in list(self._leaving.items()):
                await self._contact.complete("leave", partial(self._leave, folder, prefix, grant))
                self._leaving.pop((folder, prefix), None)
            if not any(self._leaving.values()):
                self.granted.set()

    async def _leave(self, folder: str, prefix: str, grant: Grant | None) -> None:
        if grant is not None and grant.session == self._contact.session:
            await self._succession.write_grant(folder, grant)
        for name in queue_nodes(await self._connection.children(folder)):
            if name.startswith(prefix):
                with suppress(NoNodeError):
                    await self._connection.call("delete", f"{folder}/{name}")
