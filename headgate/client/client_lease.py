"""The connection of a producer, consumer or administrator: one that its program shares, or one of its own."""

from headgate.client.connection import Client
from headgate.errors import HeadgateError
from headgate.settings.arguments import require_seconds
from headgate.settings.config import ClientConfig


class ClientLease:
    """Uses a client that is connected already, or connects and closes one that is not."""

    def __init__(
        self, given: ClientConfig | Client, kind: str, timeout_seconds: float, *, with_store: bool = False
    ) -> None:
        """Describe the connection. Nothing is connected yet.

        ``kind`` and ``with_store`` are for a client of its own; see `Client.from_config`. ``timeout_seconds`` is for
        connecting. Raises ConfigError.
        """
        self.timeout_seconds = require_seconds("connect_timeout_seconds", timeout_seconds)
        self.opened = False
        self.client = given if isinstance(given, Client) else Client.from_config(given, kind, with_store=with_store)
        self._kind, self._owned = kind, not self.client.entered

    async def open(self) -> None:
        """Connect, and wait for the description of the cluster. If that fails, nothing stays open.

        Raises NoLeaderError or TransportError. HeadgateError: a fork has copied the client of its own.
        """
        if self._owned:
            await self.client.__aenter__()
        self.client.request_ids.require_own_loop()
        try:
            await self.client.shard_map(self.timeout_seconds)
        except BaseException:
            await self.close()
            raise
        self.opened = True

    def require_own_loop(self) -> float:
        """Return the time of the client's event loop. Raises HeadgateError: another one runs, or nothing is open."""
        if not self.opened:
            raise HeadgateError(f"this {self._kind} is closed or is not open; use it as an async context manager")
        return self.client.request_ids.require_own_loop()

    async def close(self) -> None:
        self.opened = False
        if self._owned:
            await self.client.__aexit__(None, None, None)
