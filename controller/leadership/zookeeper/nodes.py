"""Close the nodes of a cluster to all users but its own.

An access control list is not inherited: each node has its own. A folder's list decides who creates and deletes nodes in
it; the list of a node decides who reads and writes it. Every client sees that a node exists.

Nodes that other users could change (those of a cluster that was open so far) are closed when a daemon first needs them.
A node that this daemon may not close belongs to another user, and is an error that names it.
"""

import structlog
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import ZnodeStat

from controller.leadership.zookeeper.connection import RefusedError, ZooKeeperConnection

log = structlog.get_logger(__name__)


class ZooKeeperNodes:
    """The rights to nodes. Without a user nothing is closed, and no list is read."""

    def __init__(self, connection: ZooKeeperConnection) -> None:
        self._connection = connection
        self._closed: set[str] = set()
        """Nodes that are known to be closed."""

    async def ensure(self, path: str) -> None:
        """Create ``path`` and its parents as far as they are missing, and close all of them.

        Raises RefusedError: one belongs to another user; and what `ZooKeeperConnection.call` raises.
        """
        if path in self._closed:
            return
        await self._connection.call("ensure_path", path)
        names = path.split("/")[1:]
        for length in range(1, len(names) + 1):
            await self.close("/" + "/".join(names[:length]))

    async def close(self, path: str) -> None:
        """Close the node if it exists. Raises like `ensure`."""
        wanted = self._connection.acl
        if not wanted or path in self._closed:
            return
        try:
            found, _ = await self._connection.call("get_acls", path)
        except NoNodeError:
            return
        if set(found) != set(wanted):
            await self._connection.call("set_acls", path, wanted)
            if not set(found) <= set(wanted):
                log.warning("zookeeper.node_closed", node=path, was_open_to=[str(entry.id.scheme) for entry in found])
        self._closed.add(path)

    async def strangeness(self, path: str, stat: ZnodeStat) -> str | None:
        """Return why no daemon of this cluster can have created a queue node; None: one did. Raises NoNodeError."""
        if stat.ephemeralOwner == 0:
            return "permanent"
        return None if await self._is_own(path) else "of another user"

    async def _is_own(self, path: str) -> bool:
        """Whether a daemon of this cluster created the node: only they know the user that its list names."""
        wanted = self._connection.acl
        if not wanted:
            return True
        try:
            found, _ = await self._connection.call("get_acls", path)
        except RefusedError:
            return False
        return not set(wanted).isdisjoint(found)

    def forget(self) -> None:
        """Look at each node again before it is used."""
        self._closed.clear()
