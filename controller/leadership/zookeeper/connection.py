"""A connection to ZooKeeper with kazoo: threads, TLS, authentication, and calls that the event loop can wait for.

Only ``*_async`` calls of kazoo are used. Its threads only post to the event loop.

kazoo makes a TLS context of its own for each connection: it trusts the system's authorities beside the given ones, and
accepts TLS 1.0. So connections are made here, with a context that verifies the server and its name before ZooKeeper's
session, or a password, is sent.
"""

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kazoo.client import KazooClient
from kazoo.exceptions import (
    KazooException,
    NoAuthError,
    NoNodeError,
    SessionClosedRequireSaslError,
    WriterNotClosedException,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.security import ACL, Id, Permissions, make_digest_acl_credential

from headgate.errors import HeadgateError

CALL_TIMEOUT_SECONDS: Final = 30.0
"""A backstop: kazoo normally fails a call when it notices that the connection is lost."""

# kazoo logs each connection attempt. An outage is logged once, by the user of this module.
_KAZOO_LOG: Final = logging.getLogger("headgate.kazoo")
_KAZOO_LOG.disabled = True


class RefusedError(HeadgateError):
    """ZooKeeper refuses what this daemon asks for. The text says what, and what to do."""


FAILURES: Final = (KazooException, KazooTimeoutError, TimeoutError, RefusedError)


@dataclass(frozen=True, slots=True)
class DigestUser:
    """A user of the scheme ``digest``. ZooKeeper stores no users: the password alone makes the user."""

    username: str
    password: str = field(repr=False)

    @property
    def identity(self) -> str:
        """The name in the access control lists of nodes: it contains the SHA-1 of the password."""
        identity: str = make_digest_acl_credential(self.username, self.password)
        return identity


@dataclass(frozen=True, slots=True)
class ZooKeeperCredentials:
    """How to connect. Without a user, nodes are open to every client."""

    user: DigestUser | None = None
    tls: ssl.SSLContext | None = None


class ZooKeeperConnection:
    """A session, and the connections that kazoo makes for it. All callbacks run on the event loop."""

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_seconds: float,
        credentials: ZooKeeperCredentials,
        on_state: Callable[[str], None],
        on_tls_problem: Callable[[str], None],
        on_end: Callable[[str, BaseException | None], None],
    ) -> None:
        """Create it, on a running loop.

        Args:
            hosts: ``host:port,host:port``, and a path that precedes all others.
            session_timeout_seconds: time after which the servers end a session without contact.
            credentials: user and TLS.
            on_state: receives kazoo's ``KazooState``.
            on_tls_problem: receives why no connection with TLS exists, for each attempt.
            on_end: receives why the client has ended for good, and the exception if a bug did it.
        """
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._users: tuple[DigestUser, ...] = () if credentials.user is None else (credentials.user,)
        threads = _Threads(
            credentials.tls,
            on_problem=lambda problem: self._post(on_tls_problem, problem),
            on_end=lambda error: self._post(self._ended, error),
        )
        self._threads = threads
        self._client: Any = KazooClient(
            hosts=hosts,
            handler=threads,
            timeout=session_timeout_seconds,
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0},
            default_acl=self.acl or None,
            auth_data=[_authentication(user) for user in self._users],
            logger=_KAZOO_LOG,
        )
        self._listener = lambda state: self._post(on_state, state)
        self._client.add_listener(self._listener)

    @property
    def session_id(self) -> int | None:
        """The number of the session; None without contact."""
        found: tuple[int, bytes] | None = self._client.client_id
        return None if found is None else found[0]

    @property
    def acl(self) -> list[ACL]:
        """The access control list of every node of this daemon: all rights, for its user only. Empty without a user.

        It names the user, instead of "the creator" (``CREATOR_ALL_ACL``), which would add the daemon's certificate.
        """
        return [ACL(Permissions.ALL, Id("digest", user.identity)) for user in self._users]

    def start(self) -> None:
        """Connect, again and again; return at once."""
        self._client.start_async()

    async def close(self, seconds: float) -> bool:
        """End the session. Return whether it was done within ``seconds``; otherwise a thread finishes it."""
        self._client.remove_listener(self._listener)
        stopped = asyncio.Event()

        def stop() -> None:
            # During a partition this blocks for ten seconds or more, so it runs in a daemon thread.
            with suppress(WriterNotClosedException):  # raised after one session timeout; kazoo's threads are daemons
                self._client.stop()
                self._client.close()
            self._post(stopped.set)

        threading.Thread(target=stop, name="zookeeper-stop", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                await stopped.wait()
        except TimeoutError:
            return False
        return True

    def use(self, credentials: ZooKeeperCredentials) -> bool:
        """Use other certificates from the next connection on, and another password at once.

        Return whether the password changed. The session keeps the rights of the old one, so that it can give its nodes
        to both.
        """
        self._threads.tls = credentials.tls
        user = credentials.user
        if user is None or user in self._users:
            return False
        self._users = (user, *self._users)
        self._client.default_acl = self.acl
        self._client.auth_data = self._client.auth_data | {_authentication(user)}
        # Not add_auth: its reply overtakes those of earlier calls, which kazoo does not expect. The next connection
        # of the same session authenticates before it makes calls.
        self._threads.disconnect()
        return True

    async def call(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Make one of kazoo's ``*_async`` calls. Raises kazoo's exception, TimeoutError, or RefusedError."""
        response: asyncio.Future[Any] = self._loop.create_future()

        def complete(value: Any, error: BaseException | None) -> None:
            if response.done():
                return
            if error is None:
                response.set_result(value)
            else:
                response.set_exception(error)

        # Links run on a kazoo thread.
        called = getattr(self._client, f"{operation}_async")(*arguments, **options)
        called.rawlink(lambda result: self._post(complete, result.value, result.exception))
        try:
            # Not wait_for: in Python 3.11 it can swallow a cancellation that arrives together with the result.
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                return await response
        except NoAuthError:
            raise RefusedError(self._denial(self._client.chroot + arguments[0])) from None
        except SessionClosedRequireSaslError:
            raise RefusedError(
                "ZooKeeper requires a user: set [zookeeper] username and password_file"
                if not self._users
                else "ZooKeeper does not accept users of the scheme digest: add it to enforce.auth.schemes"
            ) from None

    async def children(self, folder: str) -> list[str]:
        """Return the names of the nodes in ``folder``; none if it does not exist. Raises like `call`."""
        try:
            found: list[str] = await self.call("get_children", folder)
        except NoNodeError:
            return []
        return found

    def _denial(self, path: str) -> str:
        if not self._users:
            return f"ZooKeeper node {path} is closed to clients without a user: set [zookeeper] username"
        return (
            f"ZooKeeper node {path} is closed to user {self._users[0].username!r} with this password. If daemons of "
            "this cluster created it, correct [zookeeper] username and password_file; otherwise delete it, or give it "
            "to this user with setAcl"
        )

    def _ended(self, error: BaseException | None) -> None:
        if error is not None:
            reason = repr(error)
        elif self._users:
            # kazoo gives up for no other reason. A server takes every name and password, unless it knows no digest.
            reason = "it rejected [zookeeper] username; do the servers accept the scheme digest?"
        else:
            reason = "it rejected this client"
        self._on_end(reason, error)

    def posts(self, act: Callable[[], object]) -> Callable[[object], None]:
        """Return a watcher that has ``act`` done on the event loop: kazoo calls it on a thread."""
        return lambda _event: self._post(act)

    def _post(self, act: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(act, *arguments)


class _Threads(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads and sockets. Each thread reports its end: kazoo neither restarts one nor fails without it."""

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        *,
        on_problem: Callable[[str], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        super().__init__()
        self.tls = tls
        self._on_problem = on_problem
        self._on_end = on_end
        self._connected: socket.socket | None = None

    def disconnect(self) -> None:
        """End the present connection, as a network failure does."""
        if self._connected is None:
            return
        if isinstance(self._connected, _TlsSocket):
            self._connected.on_error = None
        with suppress(OSError):
            # Not SSLSocket.shutdown, after which kazoo's thread would read encrypted bytes.
            socket.socket.shutdown(self._connected, socket.SHUT_RDWR)

    def spawn(self, func: Callable[..., None], *arguments: Any, **options: Any) -> threading.Thread:
        def run() -> None:
            try:
                func(*arguments, **options)
            except BaseException as error:  # noqa: BLE001 - ends the process
                self._on_end(error)
            else:
                self._on_end(None)

        thread: threading.Thread = super().spawn(run)
        return thread

    def create_connection(
        self, address: tuple[str, int], hostname: str = "", timeout: float | None = None, **_options: Any
    ) -> socket.socket:
        """Connect to ``address``; with TLS, only to a server whose certificate names ``hostname``. Raises OSError."""
        connection = socket.create_connection(address, timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is None:
            self._connected = connection
            return connection
        server = f"{hostname}:{address[1]}"
        try:
            encrypted = _TlsSocket.over(connection, self.tls, hostname)
        except OSError as error:
            connection.close()
            self._on_problem(_tls_problem(server, error))
            raise
        self._connected = encrypted
        encrypted.on_error = lambda error: self._on_problem(_tls_problem(server, error))
        return encrypted

    def select(self, readers: Any, writers: Any, others: Any, timeout: float | None = None) -> Any:
        """Wait for sockets. What TLS has decrypted already wakes no selector."""
        decrypted = [each for each in readers if isinstance(each, _TlsSocket) and each.pending()]
        if decrypted:
            return decrypted, [], []
        return super().select(readers, writers, others, timeout)


class _TlsSocket(ssl.SSLSocket):
    """A TLS connection that reports its failure: kazoo only tries again.

    With TLS 1.3 a server refuses a client's certificate after the handshake, so that reading fails.
    """

    on_error: Callable[[OSError], None] | None = None

    @classmethod
    def over(cls, connection: socket.socket, context: ssl.SSLContext, hostname: str) -> Self:
        """Return a TLS connection to the server ``hostname`` over ``connection``. Raises OSError."""
        context.sslsocket_class = cls
        encrypted = context.wrap_socket(connection, server_hostname=hostname)
        assert isinstance(encrypted, cls)
        return encrypted

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if self.on_error is not None:
                self.on_error(error)
            raise


def _authentication(user: DigestUser) -> tuple[str, str]:
    return "digest", f"{user.username}:{user.password}"


def _tls_problem(server: str, error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of ZooKeeper server {server} is refused ({error.verify_message}): "
            "correct [zookeeper] ca_file or hosts, or the server's certificate"
        )
    reason = (getattr(error, "reason", None) or error.strerror or str(error)).lower().replace("_", " ")
    return (
        f"no TLS connection to ZooKeeper server {server} ({reason}): "
        "check that its port requires TLS, and that it trusts [zookeeper] certificate_file, which must not have expired"
    )
