"""The part of `Admin` about the cluster itself: its daemons, and which of them leads a shard."""

from typing import Self

from headgate.client.client_lease import ClientLease
from headgate.client.cluster.query import describe_cluster
from headgate.client.connection import Client
from headgate.errors import ConfigError, HeadgateError, NoLeaderError
from headgate.protocol import messages as m
from headgate.views.cluster import ClusterInfo


class ClusterRequests:
    """A connection, and questions and commands about the cluster."""

    _lease: ClientLease
    _client: Client
    _timeout_seconds: float

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            NoLeaderError: the cluster cannot be reached in time.
            TransportError: the broker and this program refuse each other: a password, a certificate or a name is wrong.
        """
        await self._lease.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lease.close()

    async def describe_cluster(self, *, blocked: bool = False) -> ClusterInfo:
        """Return daemons, leaders, totals and subscriptions of the whole cluster, as one daemon sees it.

        ``blocked``: only the subscriptions that have blocked segments. Any leader answers, so this works while other
        shards have none. A daemon that the answering one cannot reach is ``unreachable``.
        """
        return await describe_cluster(self._client, self._all_shards(), self._timeout_seconds, blocked=blocked)

    async def transfer_shard(self, shard: int, daemon: str) -> None:
        """Make ``daemon`` the leader of ``shard``, and return once it leads.

        It reads the ledger before the present leader stops. The shard stays with it while it lives, until it is in
        maintenance. Raises RequestRejectedError if that daemon cannot take the shard, and ConfigError if there is no
        such shard.
        """
        if not 0 <= shard < self._all_shards():
            raise ConfigError(f"there is no shard {shard}: this cluster has shards 0 to {self._all_shards() - 1}")
        request = m.TransferShard(daemon=m.require_name("daemon", daemon), token=self._client.new_token())
        await self._client.command(shard, request, self._timeout_seconds)

    async def set_maintenance(self, daemon: str, *, on: bool) -> None:
        """Begin or end the maintenance of ``daemon``. A daemon in maintenance leads nothing if another one can.

        Returns once it is stored. The transfers follow within seconds. Raises RequestRejectedError if no such daemon
        is live.
        """
        request = m.SetMaintenance(daemon=m.require_name("daemon", daemon), on=on, token=self._client.new_token())
        led = [each.shard for each in (await self.describe_cluster(blocked=True)).shards if each.daemon is not None]
        if not led:
            raise NoLeaderError("no shard has a leader that could store it; it was not stored")
        await self._client.command(led[0], request, self._timeout_seconds)

    def _all_shards(self) -> int:
        if not self._lease.shards:
            raise HeadgateError("this Admin is not open; use it as an async context manager")
        return self._lease.shards
