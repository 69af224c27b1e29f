"""What an administrator can do over HTTP, each as the command of the same name.

1. Who asks needs a token with the name of a user in the access file. The requests are sent in the name of this user, so
   the leaders judge its rights as those of a command.
2. Without confirmation, an action says what it would change, and changes nothing. It is refused then for every reason
   that is known before, the rights of the user included.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from headgate.client.admin import Admin, Seen, subscription_type
from headgate.client.open_letters import OpenLetters, act, find_open
from headgate.errors import HeadgateError, NoLeaderError, RequestRejectedError, StoreError
from headgate.model.text import Encoding, as_bytes, as_text, listed
from headgate.model.time_text import time_ms
from headgate.protocol.request_fields import SegmentCount, require_name
from headgate.reading.topic_reader import ObjectTooLargeError
from headgate.views.cluster import ClusterInfo
from headgate.views.subscriptions import SubscriptionInfo
from shard.access import rules
from web.access import ForbiddenError, HttpAccess, RefusedError
from web.api.documents import ActionDocument, DeadLetter, DeadLettersDocument
from web.api.overview import NotAnsweredError, UnknownNameError
from web.api.query import InvalidQueryError, Query
from web.stored_records import MAX_SECONDS, OwnLoop, ValueT, limited, shown

Connect = Callable[[str], AbstractAsyncContextManager[Admin]]
"""User → an Admin that acts in its name."""

log = structlog.get_logger(__name__)


class Action(NamedTuple):
    summary: str
    fields: Mapping[str, Any]
    """Name → its type, or its type and its default."""
    preview: Callable[..., Awaitable[list[str]]]
    """Called with an Admin and the fields; returns what would change, or raises HeadgateError."""
    execute: Callable[..., Awaitable[Any]]
    needs: rules.Action = rules.Action.ADMINISTER

    @property
    def struct(self) -> type[msgspec.Struct]:
        fields = [(name, *(kind if isinstance(kind, tuple) else (kind,))) for name, kind in self.fields.items()]
        return msgspec.defstruct("Fields", [*fields, ("of", str, "")], forbid_unknown_fields=True)

    def act(self, given: Mapping[str, Any]) -> rules.Act:
        everywhere = "topic" not in self.fields
        return rules.Act(self.needs, given.get("topic"), given.get("subscription"), on_all_topics=everywhere)


async def _segments(admin: Admin, topic: str, *wanted: int) -> list[str]:
    found = {each.segment: each for each in (await admin.describe_topic(topic)).segments if each.state == "active"}
    if missing := [each for each in wanted if each not in found]:
        raise InvalidQueryError(f"segment {missing[0]} of {topic} is not active; these are: {listed(sorted(found))}")
    first, last = (sorted((found[each] for each in wanted), key=lambda each: each.first_hash)[end] for end in (0, -1))
    if len(wanted) > 1 and first.last_hash + 1 != last.first_hash:
        raise InvalidQueryError(f"segments {wanted[0]} and {wanted[1]} are not neighbors")
    return [f"segment {each}, with {found[each].next_offset} records, is sealed" for each in wanted]


async def _seek(admin: Admin, topic: str, subscription: str, to: str, *, dry_run: bool = True) -> list[str]:
    moves = (await admin.seek(topic, subscription, **_place(to, "to"), dry_run=dry_run)).moves
    moved = [each for each in moves if each.from_offset != each.to_offset]
    texts = [f"segment {each.segment} moves from offset {each.from_offset} to {each.to_offset}" for each in moved]
    return texts or [f"no position differs, and what {subscription} has acknowledged behind them is delivered again"]


async def _topic(admin: Admin, topic: str) -> list[str]:
    found = await admin.describe_topic(topic)
    _require_unused(*await admin.list_subscriptions(topic))
    records = sum(each.next_offset for each in found.segments)
    return [f"{topic} is deleted, with {records} records; its subscriptions: {listed(found.subscriptions) or 'none'}"]


async def _subscription(admin: Admin, topic: str, subscription: str) -> list[str]:
    _require_unused(found := await admin.describe_subscription(topic, subscription))
    return [f"subscription {subscription} of {topic} is deleted, with its positions in {len(found.segments)} segments"]


def _require_unused(*subscriptions: SubscriptionInfo) -> None:
    if names := [f"{user.consumer} of {each.subscription}" for each in subscriptions for user in each.consumers]:
        raise InvalidQueryError(f"it has consumers: {listed(names)}; stop or evict them first")


async def _key(admin: Admin, topic: str, subscription: str, key: str, drop: bool, key_encoding: Encoding) -> list[str]:
    parked = {each.key: each.records for each in await admin.parked_keys(topic, subscription)}
    if (wanted := as_bytes(key, key_encoding)) not in parked:
        known = [text + " (base64)" * (kind == "base64") for text, kind in map(as_text, parked)]
        raise InvalidQueryError(f"key {key!r} is not parked; these are: {listed(known) or 'none'}")
    return [f"{parked[wanted]} parked records of key {key} are {'given up' if drop else 'delivered in order'}"]


async def _new_topic(admin: Admin, topic: str, segments: int) -> list[str]:
    require_name("topic", topic)
    if topic in [each.topic for each in await admin.list_topics()]:
        raise InvalidQueryError(f"topic {topic!r} already exists")
    return [f"topic {topic} is created, with {segments} segment{'s' * (segments != 1)}"]


async def _new_subscription(admin: Admin, topic: str, name: str, kind: str, start: str) -> list[str]:
    require_name("subscription", name)
    if name in (await admin.describe_topic(topic)).subscriptions:
        raise InvalidQueryError(f"subscription {name!r} of topic {topic!r} exists: seek moves it")
    _place(start, "start")
    return [f"subscription {name} of {topic} is created, of type {subscription_type(kind)}, from {start}"]


def _place(text: str, word: str) -> dict[str, Any]:
    return {word: text} if text in ("earliest", "latest") else {"timestamp_ms": time_ms(text)}


async def _consumer(admin: Admin, topic: str, subscription: str, consumer: str) -> list[str]:
    held = {each.consumer: each.segments for each in (await admin.describe_subscription(topic, subscription)).consumers}
    if consumer not in held:
        raise InvalidQueryError(f"{subscription} has no consumer {consumer!r}; these are: {listed(held) or 'none'}")
    fate = "its segments go to other consumers" if len(held) > 1 else "no other consumer can read its segments"
    return [f"{consumer} is removed; {fate}: {listed(held[consumer]) or 'none'}"]


async def _transfer(admin: Admin, shard: int, daemon: str) -> list[str]:
    found = await _cluster_with(admin, daemon)
    leaders = {each.shard: each.daemon for each in found.shards}
    if shard not in leaders:
        raise InvalidQueryError(f"there is no shard {shard}: this cluster has shards 0 to {len(leaders) - 1}")
    how = "stays with" if leaders[shard] == daemon else f"moves from {leaders[shard] or 'no leader'} to"
    return [f"shard {shard} {how} {daemon}"]


async def _maintenance(admin: Admin, daemon: str, on: bool) -> list[str]:
    if on:
        return [f"daemon {daemon} is in maintenance; {(await _cluster_with(admin, daemon)).maintenance_effect(daemon)}"]
    return [f"the maintenance of daemon {daemon} ends; it gets shards again while it is live"]


async def _cluster_with(admin: Admin, daemon: str) -> ClusterInfo:
    """Return the cluster. Raises InvalidQueryError if ``daemon`` is not live in it."""
    found = await admin.describe_cluster(blocked=True)
    if daemon not in (names := [each.daemon for each in found.daemons]) and len(names) == found.totals.daemons:
        raise InvalidQueryError(f"no daemon {daemon!r} is live; these are: {listed(names)}")
    return found


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
    return Action(summary, fields, partial(_count, replay=replay), partial(act, replay=replay))


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
    "create-topic": Action("Create a topic.", {"topic": str, "segments": SegmentCount}, _new_topic, Admin.create_topic),
    "delete-topic": Action("Delete a topic with all its records.", {"topic": str}, _topic, Admin.delete_topic),
    "create-subscription": Action(
        "Create a subscription of type stream, queue or checkpoint, from earliest, latest or a time.",
        SUBSCRIPTION | {"type": str, "start": str},
        _new_subscription,
        lambda admin, topic, name, kind, at: admin.create_subscription(topic, name, type=kind, **_place(at, "start")),
        rules.Action.CONSUME,
    ),
    "delete-subscription": Action("Delete a subscription.", SUBSCRIPTION, _subscription, Admin.delete_subscription),
    "resume": Action(
        "Deliver the records of a parked key, or drop them.",
        SUBSCRIPTION | {"key": str, "drop": bool, "key_encoding": (Encoding, "utf-8")},
        _key,
        lambda admin, topic, name, key, drop, kind: admin.resume_key(topic, name, as_bytes(key, kind), drop=drop),
    ),
    "replay-dead-letters": _on_letters("Send dead letters back, each once.", replay=True),
    "drop-dead-letters": _on_letters("Drop dead letters: they are not listed or sent back any more.", replay=False),
    "evict": Action("Remove a consumer.", SUBSCRIPTION | {"consumer": str}, _consumer, Admin.evict_consumer),
    "transfer": Action("Transfer a shard.", {"shard": int, "daemon": str}, _transfer, Admin.transfer_shard),
    "maintenance": Action(
        "Begin or end the maintenance of a daemon.",
        {"daemon": str, "on": bool},
        _maintenance,
        lambda admin, daemon, on: admin.set_maintenance(daemon, on=on),
    ),
}


async def _seen(admin: Admin, given: Mapping[str, Any]) -> Seen | None:
    """Return which topic, subscription, consumer and key are named; what is created does not exist yet."""
    names = [given[each] for each in (*SUBSCRIPTION, "consumer") if each in given]
    key = as_bytes(given["key"], given.get("key_encoding", "utf-8")) if "key" in given else None
    for count in range(len(names), 0, -1):
        with suppress(RequestRejectedError):
            return await admin.seen(*names[:count], key=key if count > 1 else None)
    return None


def find_action(name: str) -> Action:
    if (action := ACTIONS.get(name)) is None:
        raise UnknownNameError(f"there is no action {name[:100]!r}; choose from {', '.join(ACTIONS)}")
    return action


class Actions:
    def __init__(self, access: Callable[[], HttpAccess], connect: Callable[[], Connect | None]) -> None:
        self._access = access
        self._connect = connect
        self._loop = OwnLoop("actions")

    def may(self, name: str, given: Mapping[str, str], authorization: str | None) -> bool:
        """Whether the token's holder may do this action."""
        with suppress(ForbiddenError):
            self._access().require(authorization, ACTIONS[name].act(given))
            return True
        return False

    async def run(
        self, name: str, given: Mapping[str, Any], authorization: str | None, *, dry_run: bool
    ) -> ActionDocument:
        """Act in the name of the token's holder, or say what that would change. Raises RefusedError."""
        user = self._access().require(authorization, rules.Act(rules.Action.DESCRIBE))
        action = find_action(name)
        try:
            fields = msgspec.convert(given, action.struct, strict=False)
        except msgspec.ValidationError as error:
            text, _, field = str(error).partition(" - at `$.")
            place = f"{field[:-1]}: " if field else ""
            raise InvalidQueryError(f"{place}{text}; fields: {', '.join(action.fields)}") from None
        self._access().require(authorization, action.act(msgspec.structs.asdict(fields)))
        *values, of = msgspec.structs.astuple(fields)

        async def perform(admin: Admin) -> tuple[list[str], str]:
            seen = await _seen(admin, given)  # Before it is shown.
            *_, present = texts = [""] if seen is None else seen.texts()
            if of and of not in texts:
                what = f"it had id {of} when it was shown, and has {present or 'none'} now"
                raise InvalidQueryError(f"{what}: it was deleted, created or started again; nothing was changed")
            found = await action.preview(admin, *values)
            if not dry_run:
                await action.execute(admin.bound_to(seen), *values)
            return found, present

        outcome = "unknown"
        try:
            (changes, present), outcome = await self._in_name_of(user, perform), "done"
        except RefusedError as error:
            outcome = str(error)
            raise
        finally:
            if not dry_run:
                log.info("http.action", user=user, action=name, values=values, outcome=outcome)
        return ActionDocument(action=name, dry_run=dry_run, changes=tuple(changes), of=present)

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
