"""What an administrator can do over HTTP, each as the command of the same name.

1. Who asks needs a token with the name of a user in the access file. The requests are sent in the name of this user, so
   the leaders judge its rights as those of a command.
2. Without confirmation, an action says what it would change, and changes nothing.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from headgate.client.admin import Admin
from headgate.client.open_letters import OpenLetters, act, find_open
from headgate.errors import HeadgateError, NoLeaderError, RequestRejectedError, StoreError
from headgate.model.time_text import time_ms
from headgate.reading.topic_reader import ObjectTooLargeError
from shard.access import rules
from web.access import ForbiddenError, HttpAccess, RefusedError
from web.api.documents import ActionDocument, DeadLetter, DeadLettersDocument
from web.api.overview import NotAnsweredError, UnknownNameError
from web.api.query import InvalidQueryError, Query
from web.own_loop import OwnLoop, ValueT
from web.stored_records import MAX_SECONDS, limited, shown

Connect = Callable[[str], AbstractAsyncContextManager[Admin]]
"""User → an Admin that acts in its name."""

log = structlog.get_logger(__name__)


class Action(NamedTuple):
    summary: str
    fields: Mapping[str, type]
    preview: Callable[..., Awaitable[list[str]]]
    """Called with an Admin and the fields; returns what would change, or raises HeadgateError."""
    execute: Callable[..., Awaitable[Any]]
    needs: rules.Action = rules.Action.ADMINISTER
    reads: bool = False
    """Whether its preview reads records. No leader judges that, so the user must have the right."""

    @property
    def struct(self) -> type[msgspec.Struct]:
        return msgspec.defstruct("Fields", list(self.fields.items()), forbid_unknown_fields=True)


async def _segments(admin: Admin, topic: str, *wanted: int) -> list[str]:
    found = {each.segment: each for each in (await admin.describe_topic(topic)).segments if each.state == "active"}
    if missing := [each for each in wanted if each not in found]:
        raise InvalidQueryError(f"segment {missing[0]} of {topic} is not active")
    return [f"segment {each}, with {found[each].next_offset} records, is sealed" for each in wanted]


async def _seek(admin: Admin, topic: str, subscription: str, to: str, *, dry_run: bool = True) -> list[str]:
    moves = (await admin.seek(topic, subscription, **_place(to, "to"), dry_run=dry_run)).moves
    return [f"segment {each.segment} moves from offset {each.from_offset} to {each.to_offset}" for each in moves]


async def _topic(admin: Admin, topic: str) -> list[str]:
    found = await admin.describe_topic(topic)
    records = sum(each.next_offset for each in found.segments)
    subscriptions = ", ".join(found.subscriptions) or "none"
    return [f"{topic} is deleted, with {records} records; its subscriptions: {subscriptions}"]


async def _subscription(admin: Admin, topic: str, subscription: str) -> list[str]:
    found = await admin.describe_subscription(topic, subscription)
    return [f"subscription {subscription} of {topic} is deleted, with its positions in {len(found.segments)} segments"]


async def _key(admin: Admin, topic: str, subscription: str, key: str, drop: bool) -> list[str]:
    parked = {each.key: each.records for each in await admin.parked_keys(topic, subscription)}
    if (wanted := key.encode()) not in parked:
        shown = ", ".join(each.decode("utf-8", "backslashreplace") for each in list(parked)[:20])
        raise InvalidQueryError(f"key {key!r} is not parked; these are: {shown or 'none'}")
    return [f"{parked[wanted]} parked records of key {key} are {'given up' if drop else 'delivered in order'}"]


async def _created(_: Admin, *given: Any) -> list[str]:
    return [f"created: {', '.join(map(str, given))}"]


def _place(text: str, word: str) -> dict[str, Any]:
    return {word: text} if text in ("earliest", "latest") else {"timestamp_ms": time_ms(text)}


async def _consumer(admin: Admin, topic: str, subscription: str, consumer: str) -> list[str]:
    held = {each.consumer: each.segments for each in (await admin.describe_subscription(topic, subscription)).consumers}
    if consumer not in held:
        raise InvalidQueryError(f"{subscription} has no consumer {consumer!r}")
    return [f"segment {each} goes to another consumer" for each in held[consumer]]


async def _leaders(admin: Admin, moved: int | str, _: object) -> list[str]:
    shards = (await admin.describe_cluster(blocked=True)).shards
    return [f"{each.daemon} leads shard {each.shard}" for each in shards if moved in (each.shard, each.daemon)]


async def _letters(
    admin: Admin, topic: str, name: str, last: int, **given: Any
) -> tuple[OpenLetters, DeadLettersDocument]:
    """Return the open dead letters, and the newest ``last`` of them with their number."""
    found = await find_open(admin, topic, name, **given, store=limited(admin.store()))
    newest, total, complete = deque[DeadLetter](maxlen=last), 0, False
    with suppress(TimeoutError, ObjectTooLargeError):
        async with asyncio.timeout(MAX_SECONDS), aclosing(found.letters()) as letters:
            async for record, origin in letters:
                newest.appendleft(DeadLetter(record.segment, record.offset, shown(record.key), origin))
                total += 1
        complete = True
    store = found.opened.description.topic
    return found, DeadLettersDocument(topic, name, store, tuple(newest), total, complete, found.through)


async def _count(admin: Admin, topic: str, name: str, through: str, *, replay: bool) -> list[str]:
    letters, found = await _letters(admin, topic, name, 0, through=through)
    letters.require_order_kept(replay=replay)
    if not found.complete:
        raise InvalidQueryError("these are too many: use headgate subscription dead-letters")
    return [f"{found.total} dead letters are " + (f"sent back to {topic}" if replay else "dropped")]


def _on_letters(summary: str, *, replay: bool) -> Action:
    fields = SUBSCRIPTION | {"through": str}
    return Action(summary, fields, partial(_count, replay=replay), partial(act, replay=replay), reads=True)


SUBSCRIPTION: Final[dict[str, type]] = {"topic": str, "subscription": str}
ACTIONS: Final = {
    "split": Action("Split an active segment.", {"topic": str, "segment": int}, _segments, Admin.split),
    "merge": Action("Merge two neighbors.", {"topic": str, "first": int, "second": int}, _segments, Admin.merge),
    "seek": Action(
        "Move a subscription to earliest, latest or a time such as 2026-01-31T18:00:00Z.",
        SUBSCRIPTION | {"to": str},
        _seek,
        lambda *given: _seek(*given, dry_run=False),
        rules.Action.CONSUME,
    ),
    "create-topic": Action("Create a topic.", {"topic": str, "segments": int}, _created, Admin.create_topic),
    "delete-topic": Action("Delete a topic with all its records.", {"topic": str}, _topic, Admin.delete_topic),
    "create-subscription": Action(
        "Create a subscription of type stream, queue or checkpoint, from earliest, latest or a time.",
        SUBSCRIPTION | {"type": str, "start": str},
        _created,
        lambda admin, topic, name, kind, at: admin.create_subscription(topic, name, type=kind, **_place(at, "start")),
        rules.Action.CONSUME,
    ),
    "delete-subscription": Action("Delete a subscription.", SUBSCRIPTION, _subscription, Admin.delete_subscription),
    "resume": Action(
        "Deliver the records of a parked key, or drop them.",
        SUBSCRIPTION | {"key": str, "drop": bool},
        _key,
        lambda admin, topic, name, key, drop: admin.resume_key(topic, name, key.encode(), drop=drop),
    ),
    "replay-dead-letters": _on_letters("Send dead letters back, each once.", replay=True),
    "drop-dead-letters": _on_letters("Drop dead letters: they are not listed or sent back any more.", replay=False),
    "evict": Action("Remove a consumer.", SUBSCRIPTION | {"consumer": str}, _consumer, Admin.evict_consumer),
    "transfer": Action("Transfer a shard.", {"shard": int, "daemon": str}, _leaders, Admin.transfer_shard),
    "maintenance": Action(
        "Begin or end the maintenance of a daemon.",
        {"daemon": str, "on": bool},
        _leaders,
        lambda admin, daemon, on: admin.set_maintenance(daemon, on=on),
    ),
}


class Actions:
    def __init__(self, access: Callable[[], HttpAccess], connect: Callable[[], Connect | None]) -> None:
        self._access = access
        self._connect = connect
        self._loop = OwnLoop("actions")

    def may(self, name: str, given: Mapping[str, str], authorization: str | None) -> bool:
        """Whether the token's holder may do this action."""
        needs, everywhere = ACTIONS[name].needs, "topic" not in ACTIONS[name].fields
        act = rules.Act(needs, given.get("topic"), given.get("subscription"), on_all_topics=everywhere)
        with suppress(ForbiddenError):
            self._access().require(authorization, act)
            return True
        return False

    async def run(
        self, name: str, given: Mapping[str, Any], authorization: str | None, *, dry_run: bool
    ) -> ActionDocument:
        """Act in the name of the token's holder, or say what that would change. Raises RefusedError."""
        user = self._access().require(authorization, rules.Act(rules.Action.DESCRIBE))
        if (action := ACTIONS.get(name)) is None:
            raise UnknownNameError(f"there is no action {name[:100]!r}; choose from {', '.join(ACTIONS)}")
        try:
            values = msgspec.structs.astuple(msgspec.convert(given, action.struct, strict=False))
        except msgspec.ValidationError as error:
            raise InvalidQueryError(f"{error}; fields: {', '.join(action.fields)}") from None
        if action.reads:
            self._access().require(authorization, rules.Act(action.needs, *values[:2]))

        async def perform(admin: Admin) -> list[str]:
            found = await action.preview(admin, *values)
            if not dry_run:
                await action.execute(admin, *values)
            return found

        outcome = "unknown"
        try:
            changes, outcome = await self._in_name_of(user, perform), "done"
        except RefusedError as error:
            outcome = str(error)
            raise
        finally:
            if not dry_run:
                log.info("http.action", user=user, action=name, values=values, outcome=outcome)
        return ActionDocument(action=name, dry_run=dry_run, changes=tuple(changes))

    async def dead_letters(
        self, topic: str, subscription: str, *, query: Query, asked: Mapping[str, str]
    ) -> DeadLettersDocument:
        """Return the newest dead letters to a user who may consume their topic. Raises RefusedError."""
        may = partial(self._access().require, asked.get("Authorization"))
        user = may(rules.Act(rules.Action.DESCRIBE, topic))
        _, found = await self._in_name_of(user, lambda admin: _letters(admin, topic, subscription, query.last))
        may(rules.Act(rules.Action.CONSUME, found.dead_letter_topic))
        return found

    async def _in_name_of(self, user: str, work: Callable[[Admin], Coroutine[Any, Any, ValueT]]) -> ValueT:
        if (connect := self._connect()) is None:
            raise NotAnsweredError("the daemon has not joined its cluster yet; try again soon")

        async def run() -> ValueT:
            async with connect(user) as admin:
                return await work(admin)

        try:
            return await self._loop.run(run)
        except (HeadgateError, ValueError) as error:
            if isinstance(error, RefusedError):
                raise
            forbidden = isinstance(error, RequestRejectedError) and error.verdict == "forbidden"
            kind = ForbiddenError if forbidden else InvalidQueryError
            raise (NotAnsweredError if isinstance(error, NoLeaderError | StoreError) else kind)(str(error)) from error
