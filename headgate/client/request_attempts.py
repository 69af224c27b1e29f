"""Who waits for what arrives, and the attempts at one request: which replies count, and how long to wait for one.

A leader that has more to do than it can answers late. If only the newest repetition counted, late replies would be
useless, repetitions would add to the load, and the leader would never catch up.

1. A reply to an earlier attempt counts like one to the newest, if the term is the same. A refusal counts only for the
   newest attempt, and not if an earlier leader sent it.
2. The wait for a reply doubles after the second attempt in vain, and after each further one, up to
   `MAX_REPLY_TIMEOUT_SECONDS`: one lost message costs no more than before. A new term begins with the first wait again.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Final, Generic, Self, TypeVar

import msgspec

from headgate.errors import HeadgateError, ProtocolError
from headgate.protocol import codec
from headgate.protocol.replies import AnyReply, MessagePart, Push, Rejected, Reply, ReplyBody

BodyT = TypeVar("BodyT", bound=ReplyBody)
HandlerT = TypeVar("HandlerT")

ReplyHandler = Callable[[Reply], None]
PushHandler = Callable[[Push], None]
ConsumerKey = tuple[str, str, str, int]
"""Topic, subscription, name and incarnation: a consumer that ends leaves the pushes of the next one of its name."""
REPLY_TIMEOUT_SECONDS: Final = 2.0
"""After this long without a reply a request is repeated, which is harmless."""
MAX_REPLY_TIMEOUT_SECONDS: Final = 16.0


class Handlers(Generic[HandlerT]):
    """Handlers of one event. Adding and removing one costs the same however many there are.

    One that is removed while they are called may still be called this time; one that is added then is not.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._handlers: dict[int, HandlerT] = {}

    def add(self, handler: HandlerT) -> Callable[[], None]:
        """Add ``handler``; return a function that removes it, and does nothing when called again."""
        number = next(self._numbers)
        self._handlers[number] = handler

        def remove() -> None:
            self._handlers.pop(number, None)

        return remove

    def __iter__(self) -> Iterator[HandlerT]:
        return iter(list(self._handlers.values()))


class ReplyDispatch:
    """Hands each message of the leaders to who waits for it: replies by request, pushes by consumer, whole parts.

    Messages that nothing waits for are ignored: replies can be late or doubled.
    """

    def __init__(
        self, on_undecodable: Callable[[str, msgspec.DecodeError], None], on_shards: Callable[[list[int]], None]
    ) -> None:
        """``on_undecodable`` gets the kind and the error of a message in parts that cannot be decoded.

        ``on_shards`` gets the numbers of shards that a refusal names, before what waits for the reply.
        """
        self._on_shards = on_shards
        self._on_undecodable = on_undecodable
        self._parts = codec.PartCollector()
        self._replies: dict[int, ReplyHandler] = {}
        self._pushes: dict[ConsumerKey, PushHandler] = {}

    def expect(self, request_id: int, handler: ReplyHandler) -> None:
        """Call ``handler`` with every reply to ``request_id``, until `forget`."""
        self._replies[request_id] = handler

    def forget(self, request_id: int) -> None:
        self._replies.pop(request_id, None)

    def expect_pushes(self, key: ConsumerKey, handler: PushHandler) -> None:
        """Call ``handler`` with every push to a consumer, until `forget_pushes`."""
        self._pushes[key] = handler

    def forget_pushes(self, key: ConsumerKey) -> None:
        self._pushes.pop(key, None)

    def dispatch(self, message: AnyReply) -> None:
        match message:
            case MessagePart():
                self._collect(message)
            case Reply():
                if isinstance(message.body, Rejected):
                    self._on_shards(message.body.shards)
                if (reply_handler := self._replies.get(message.request_id)) is not None:
                    reply_handler(message)
            case _:
                key = message.topic, message.subscription, message.consumer, message.incarnation
                if (push_handler := self._pushes.get(key)) is not None:
                    push_handler(message)

    def _collect(self, part: MessagePart) -> None:
        payload = self._parts.add(part)
        if payload is None:
            return
        try:
            message = codec.decode_reply(payload)
        except msgspec.DecodeError as error:
            self._on_undecodable("parts", error)
            return
        if not isinstance(message, MessagePart):
            self.dispatch(message)


def body_of(reply: Reply, kind: type[BodyT], sender: str) -> BodyT:
    """Return the body of ``reply``, which has to be of type ``kind``. Raises ProtocolError: it names ``sender``."""
    if not isinstance(reply.body, kind):
        raise ProtocolError(
            f"{sender} answered {type(reply.body).__name__} instead of {kind.__name__}: update the older of this "
            "program's library and the daemons"
        )
    return reply.body


class RequestIds(Iterator[int]):
    """The ids of a client's requests. Raises HeadgateError in a forked child process, or another event loop.

    Its copy would use the same client id and the same request ids: a reply to one would count for the other. In another
    loop, nothing would wake what waits. The first is random, so that no reply to an earlier program matches a request.
    """

    def __init__(self, first: int) -> None:
        self._ids, self._process_id = count(first), os.getpid()
        self.loop: asyncio.AbstractEventLoop | None = None  # in which the client was opened

    def __next__(self) -> int:
        self.require_own_process()
        return next(self._ids)

    def require_own_process(self) -> None:
        if os.getpid() != self._process_id:
            raise HeadgateError(f"this object belongs to process {self._process_id}: create it after the fork")

    def require_own_loop(self) -> float:
        """Return the time of the client's event loop, which has to be the running one."""
        if (loop := asyncio.get_running_loop()) is not self.loop:
            self.require_own_process()  # A child has another loop.
            where = "in another event loop; each asyncio.run makes a new one" if self.loop else "nowhere yet"
            raise HeadgateError(f"open this client where it is used: it was opened {where}")
        return loop.time()


class RequestAttempts:
    """Use it as a context manager: afterwards no reply is expected any more."""

    def __init__(self, replies: ReplyDispatch, request_ids: Iterator[int]) -> None:
        self.newest_id = 0
        self._in_vain = 0
        """Attempts of this term that had no reply in time."""
        self._replies = replies
        self._request_ids = request_ids
        self._ids: list[int] = []
        self._leader_epoch = 0
        self._answered: asyncio.Future[Reply | None] | None = None
        self._late: Reply | None = None
        """A reply that arrived between two attempts."""

    @property
    def timeout_seconds(self) -> float:
        """How long to wait for a reply to the newest attempt (rule 2)."""
        return min(REPLY_TIMEOUT_SECONDS * float(2 ** max(0, self._in_vain - 1)), MAX_REPLY_TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()

    def begin(self, leader_epoch: int) -> asyncio.Future[Reply | None]:
        """Begin an attempt in a term. If its future is done, an earlier attempt has been answered: send nothing."""
        if leader_epoch != self._leader_epoch:
            self._forget()
            self._leader_epoch, self._late = leader_epoch, None
            self._in_vain = 0
        self.newest_id = next(self._request_ids)
        self._ids.append(self.newest_id)
        self._replies.expect(self.newest_id, partial(self._on_reply, self.newest_id))
        self._answered = asyncio.get_running_loop().create_future()
        if self._late is not None:
            self._answered.set_result(self._late)
        return self._answered

    def unanswered(self) -> None:
        self._in_vain += 1

    def leader_changed(self, leader: codec.LeaderAnnouncement) -> None:
        """End the newest attempt if another term has begun."""
        if leader.leader_epoch != self._leader_epoch and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def _on_reply(self, request_id: int, reply: Reply) -> None:
        assert self._answered is not None, "a reply before the first attempt"
        refused = isinstance(reply.body, Rejected)
        if refused and (reply.leader_epoch < self._leader_epoch or request_id != self.newest_id):
            return
        if not self._answered.done():
            self._answered.set_result(reply)
        elif not refused:
            self._late = reply

    def _forget(self) -> None:
        for request_id in self._ids:
            self._replies.forget(request_id)
        self._ids.clear()
