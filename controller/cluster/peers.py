"""Asks the other daemons of the cluster for what they lead, over their HTTP API.

1. ZooKeeper names the live daemons and where they listen. While it does not answer, the last list counts.
2. A request carries a token that only daemons can make (`SessionSecret.http_token`): it is valid for one
   receiver and some minutes, and reads what any token reads.
3. Each answer has a time limit and a size limit, and the number of requests in flight is bounded.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Generic, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from controller.leadership.election import Registry
from controller.leadership.policy.instance_record import read_record
from headgate.errors import HeadgateError
from headgate.model.text import UNREADABLE_JSON
from web.api.documents import DaemonDocument, DaemonPart, ErrorDocument, SubscriptionDocument, TopicDocument
from web.api.overview import NotAnsweredError, UnknownNameError

MIN_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 30.0

ValueT = TypeVar("ValueT")


@dataclass(eq=False, repr=False)
class SharedAnswer(Generic[ValueT]):
    """One answer for all who ask at about the same time."""

    make: Callable[[], Awaitable[ValueT]]
    _: KW_ONLY
    about: Callable[[], object] = lambda: None
    """Returns what an answer holds for: one that was made for another value is not used."""
    seconds: float = MIN_PAUSE_SECONDS
    """How long an answer is used, or ``pause_factor`` times as long as it took; at most `MAX_PAUSE_SECONDS`."""
    pause_factor: float = 0.0
    _answer: tuple[ValueT, float, object] | None = None
    """The last answer, until when it is used, and what it is about."""
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self) -> ValueT:
        """Return the last answer while it is young, otherwise a new one."""
        loop = asyncio.get_running_loop()
        async with self._making:
            if self._answer is None or loop.time() >= self._answer[1] or self.about() != self._answer[2]:
                began, about = loop.time(), self.about()
                value = await self.make()
                took_seconds = loop.time() - began
                pause_seconds = min(max(self.seconds, self.pause_factor * took_seconds), MAX_PAUSE_SECONDS)
                self._answer = value, loop.time() + pause_seconds, about
            return self._answer[0]


TIMEOUT_SECONDS: Final = 2.0
"""Longest wait for an answer: a page with one slow daemon still appears in time."""
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Twice the largest subscription: 4095 segments, 1000 consumers. A daemon takes it for 50 000 subscriptions."""
MAX_REQUESTS: Final = 8
INSTANCES_SECONDS: Final = 5.0
"""How long the list of live daemons is used. A daemon that has ended stays for the session timeout anyway."""

DocumentT = TypeVar("DocumentT")
NOT_FOUND: Final = 404


def addresses(instances: Mapping[str, bytes]) -> dict[str, str]:
    """Return daemon → URL for each live daemon; empty if what it registered names none."""
    urls = {name: read_record(data).url for name, data in instances.items()}
    return {name: url if url.startswith(("http://", "https://")) else "" for name, url in urls.items()}


@dataclass(eq=False, repr=False)
class Peers:
    """The other daemons. An async context manager: its connections live as long as it is entered."""

    instance: str
    tls: Callable[[], ssl.SSLContext]
    """Called for each connection to a daemon with TLS."""
    _: KW_ONLY
    registry: Callable[[], Registry | None]
    """Returns None until the daemon has joined its cluster."""
    token_for: Callable[[str], str]
    """Receiver → token."""
    known: dict[str, str] = field(default_factory=dict)
    """Daemon → URL, of all live daemons."""
    _requests: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_REQUESTS))
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _session: aiohttp.ClientSession | None = None

    def __post_init__(self) -> None:
        self._find = SharedAnswer(self._find_instances, seconds=INSTANCES_SECONDS).get

    async def __aenter__(self) -> Self:
        # Each request has a connection of its own: an idle one would count at the peer's listener.
        connector = aiohttp.TCPConnector(force_close=True)
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._session = None
        await self._stack.aclose()

    async def parts(self) -> list[DaemonPart]:
        """Return what the other daemons know; those that do not answer are ``unreachable``."""
        await self._find()
        return list(await asyncio.gather(*(self._part(name) for name in sorted(self.known) if name != self.instance)))

    async def topic(self, daemon: str, topic: str) -> TopicDocument:
        """Return one topic. Raises UnknownNameError or NotAnsweredError."""
        await self._find()
        return await self._get(daemon, f"/topics/{quote(topic, safe='')}?scope=daemon", TopicDocument)

    async def subscription(self, daemon: str, topic: str, subscription: str) -> SubscriptionDocument:
        """Return one subscription. Raises UnknownNameError or NotAnsweredError."""
        await self._find()
        path = f"/topics/{quote(topic, safe='')}/subscriptions/{quote(subscription, safe='')}?scope=daemon"
        return await self._get(daemon, path, SubscriptionDocument)

    async def _find_instances(self) -> None:
        """Ask ZooKeeper for the live daemons. While it does not answer, those of the last answer remain."""
        registry = self.registry()
        if registry is not None and (found := await registry.instances()) is not None:
            self.known = addresses(found)

    async def _part(self, name: str) -> DaemonPart:
        try:
            return await self._get(name, "/daemon/rows", DaemonPart)
        except HeadgateError as error:
            url = self.known.get(name) or None
            return DaemonPart(daemon=DaemonDocument(daemon=name, url=url, state="unreachable", problem=str(error)))

    async def _get(self, daemon: str, path: str, kind: type[DocumentT]) -> DocumentT:
        url = self.known.get(daemon)
        if not url or self._session is None:
            raise NotAnsweredError(f"daemon {daemon!r} has registered no address in ZooKeeper")
        try:
            async with (
                self._requests,
                asyncio.timeout(TIMEOUT_SECONDS),
                self._session.get(
                    f"{url}/api/v1{path}",
                    headers={"Authorization": f"Bearer {self.token_for(daemon)}"},
                    ssl=self.tls() if url.startswith("https:") else True,
                    allow_redirects=False,
                ) as response,
            ):
                status, body = response.status, await _limited(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or "no answer in time"
            raise NotAnsweredError(f"daemon {daemon!r} at {url} did not answer: {reason}") from error
        try:
            if status == NOT_FOUND:
                raise UnknownNameError(msgspec.json.decode(body, type=ErrorDocument).error)
            if status != 200:  # noqa: PLR2004
                clocks = " (do both clocks agree?)" if status == 401 else ""  # noqa: PLR2004
                raise NotAnsweredError(f"daemon {daemon!r} at {url} answered with status {status}{clocks}")
            return await asyncio.to_thread(msgspec.json.decode, body, type=kind)
        except UNREADABLE_JSON as error:
            raise NotAnsweredError(f"daemon {daemon!r} at {url} is of another version: {error}") from error


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise aiohttp.ClientPayloadError(f"more than {MAX_ANSWER_BYTES >> 20} MiB")
    return bytes(body)
