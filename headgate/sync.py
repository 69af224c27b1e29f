"""Producer, Consumer and Admin for programs without an event loop: scripts and notebooks.

    from headgate import load_client_config
    from headgate.sync import Consumer, Producer

    config = load_client_config()
    with Producer(config) as producer:
        producer.send_and_wait("orders", b"customer-7", b'{"total": 12}')
    with Consumer(config, topic="orders", subscription="billing", start="earliest") as consumer:
        consumer.run(handle, concurrency=8)

Each object runs the asyncio client of the same name in an event loop in its own thread, or in that of
`EventLoopThread.open`, so heartbeats continue while the program computes. Its constructor has the parameters of that
client, and connects. Interceptors run in that thread. Methods may be called from any thread, while the main one runs.

An exception that leaves the ``with`` block discards what a producer has not sent. An object that is
never closed is closed when the interpreter exits. Ctrl-C cancels the waiting call. A forked child
process cannot use its parent's objects, because it has no copy of their thread: every call raises.

A call costs some 0.1 ms. For throughput use `Producer.send` and `Consumer.get_many`, or asyncio.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import copy
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import ContextVar
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar, cast

from headgate.client import admin, consumer, producer
from headgate.client.client_metrics import ConsumerMetrics, ProducerMetrics
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.processing.calls import calling_tasks, refuse_own_caller, stopped_by_sigterm
from headgate.errors import HeadgateError
from headgate.model.identifiers import SegmentId
from headgate.settings.arguments import require_seconds

__all__ = ["Admin", "Consumer", "Delivery", "EventLoopThread", "Producer"]

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CANCEL_SECONDS: Final = 5.0
_SHARED: Final[ContextVar[EventLoopThread | None]] = ContextVar("shared", default=None)
"""The thread of the object that is being created; None: one of its own."""


class EventLoopThread:
    """An event loop in a daemon thread. Use it as a context manager, or call `close`."""

    def __init__(self) -> None:
        # With a loop factory, the runner leaves the creating thread's own event loop alone.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._closed = False
        self._closing = threading.RLock()  # A signal handler may interrupt its own thread.
        """Held while a call begins: after `close`, nothing in the loop would end it."""
        self._process_id = os.getpid()
        self._interrupts = threading.local()
        self._thread = threading.Thread(target=self._run_loop, name="headgate-sync", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    def _run_loop(self) -> None:
        # The runner cleans up in this thread: the closing one may run an event loop of its own.
        with self._runner:
            self._loop.run_forever()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a forked child process, where its thread does not run."""
        return os.getpid() != self._process_id

    def require_own_process(self) -> None:
        """Raise HeadgateError in a forked child process."""
        if self.forked:
            raise HeadgateError(
                f"this object belongs to process {self._process_id} and cannot be used in its forked child "
                f"{os.getpid()}: create it after the fork, e.g. in Celery's worker_process_init or gunicorn's post_fork"
            )

    def require_other_thread(self) -> None:
        """Raise HeadgateError in the thread of the loop."""
        if threading.current_thread() is self._thread:
            raise HeadgateError(
                "a coroutine in the event loop of this object calls it, and would wait for itself: use a plain "
                "function, which gets a thread of its own"
            )

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``coroutine``. Ctrl-C cancels it.

        If it has a result nevertheless, that is returned, and the next call raises: a record that was delivered, and
        that the program has not got, would be acknowledged with the next one.

        Raises HeadgateError: this is closed, or belongs to the process that this one was forked from.
        """
        if self.forked or threading.current_thread() is self._thread:
            coroutine.close()
            self.require_own_process()
            self.require_other_thread()
        ended: list[tuple[T | None, SystemExit | KeyboardInterrupt | None]] = []
        with self._closing:
            if self._closed:
                coroutine.close()
                raise HeadgateError("this object is closed; create another one")
            if (interrupt := self.take_interrupt()) is not None:
                coroutine.close()
                raise interrupt
            future = asyncio.run_coroutine_threadsafe(_end(coroutine, ended), self._loop)
        try:
            future.result()
        except BaseException as error:
            if not future.done():
                future.cancel()
                with contextlib.suppress(TimeoutError):  # until the loop has cancelled it
                    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(CANCEL_SECONDS)
            if not ended:
                raise
            self._interrupts.last = error
        [(result, exited)] = ended
        if exited is not None:
            raise exited
        return cast("T", result)

    def take_interrupt(self) -> BaseException | None:
        """Return what has interrupted the last call in this thread although it had a result, once."""
        return cast("BaseException | None", self._interrupts.__dict__.pop("last", None))

    def open(self, kind: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return a `Producer`, `Consumer` or `Admin` that runs in this thread, as in ``open(Producer, config)``."""
        before = _SHARED.set(self)
        try:
            return kind(*args, **kwargs)
        finally:
            _SHARED.reset(before)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call ``function`` in the thread, without waiting for it; not at all once this is closed."""
        with self._closing:
            if not self._closed:
                self._loop.call_soon_threadsafe(function)

    def _close_at_exit(self) -> None:
        """Close before the interpreter stops the thread: what then waits for it would never end."""
        if not self.forked:
            self.close()

    def close(self) -> None:
        """Cancel what still runs, and end the thread. A second call does nothing."""
        self.require_own_process()
        with self._closing:
            if self._closed:
                return
            refuse_own_caller("close", [task for task in calling_tasks() if task.get_loop() is self._loop])
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.call_soon, self._loop.stop)  # after the first step of a call
        atexit.unregister(self._close_at_exit)
        self._thread.join()


ClientT = TypeVar("ClientT", bound=producer.Producer | consumer.Consumer | admin.Admin)


class _Facade(Generic[ClientT]):
    """One asyncio client, and the loop that it runs in."""

    def _connect(self, create: Callable[P, ClientT], *args: P.args, **kwargs: P.kwargs) -> None:
        if not threading.main_thread().is_alive():
            raise HeadgateError("the main thread has ended, and with it Python's thread pools: let it join this thread")
        shared = _SHARED.get()
        self._loop = shared or EventLoopThread()
        self._owns_loop = shared is None
        self._closed = False
        try:
            self._client = self._loop.run(_open(create, *args, **kwargs))
        except BaseException:
            self._stop_loop()
            raise
        atexit.register(self._close_at_exit)

    def __enter__(self) -> Self:
        return self

    def _close_at_exit(self) -> None:
        if not self._loop.forked:
            self.__exit__()

    def __exit__(self, *exception: object) -> None:
        """Close, as the asyncio client does when its block ends in the same way."""
        self._loop.require_own_process()
        if self._closed:
            return
        self._loop.require_other_thread()
        self._closed = True
        atexit.unregister(self._close_at_exit)
        interrupt = self._loop.take_interrupt()
        try:
            self._loop.run(self._client.__aexit__(*cast("Any", exception or (None, None, None))))
        finally:
            self._stop_loop()
        if interrupt is not None:
            raise interrupt

    def _stop_loop(self) -> None:
        if self._owns_loop:
            self._loop.close()

    def _read(self, read: Callable[[], T]) -> T:
        """Call ``read`` in the loop's thread, where values do not change meanwhile."""

        async def call() -> T:
            return read()

        return self._loop.run(call())


async def _end(
    coroutine: Coroutine[Any, Any, T], ended: list[tuple[T | None, SystemExit | KeyboardInterrupt | None]]
) -> None:
    """Add the result of ``coroutine`` to ``ended``, or the exit that it raised: one of that kind ends the loop."""
    try:
        ended.append((await coroutine, None))
    except (SystemExit, KeyboardInterrupt) as error:
        ended.append((None, error))


async def _open(create: Callable[P, ClientT], *args: P.args, **kwargs: P.kwargs) -> ClientT:
    """Create and open a client inside the loop that it is to run in."""
    client = create(*args, **kwargs)
    await client.__aenter__()
    return client


def _connecting(
    create: Callable[P, ClientT],
) -> Callable[[Callable[..., None]], Callable[Concatenate[_Facade[ClientT], P], None]]:
    """Make a method the constructor of a facade, with the parameters of ``create``: it makes and opens that client."""

    def constructor(_: Callable[..., None]) -> Callable[Concatenate[_Facade[ClientT], P], None]:
        @functools.wraps(create.__init__)
        def construct(self: _Facade[ClientT], /, *args: P.args, **kwargs: P.kwargs) -> None:
            self._connect(create, *args, **kwargs)

        return construct

    return constructor


def _blocking(
    method: Callable[Concatenate[ClientT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Facade[ClientT], P], T]:
    """Return ``method`` as a method that waits for its result."""

    @functools.wraps(method)
    def call(self: _Facade[ClientT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._client, *args, **kwargs))

    return call


def _until_sigterm(
    run: Callable[Concatenate[_Facade[consumer.Consumer], P], T],
) -> Callable[Concatenate[Consumer, P], T]:
    """Return ``run`` as a method that SIGTERM ends gracefully, where nothing else handles it."""

    @functools.wraps(run)
    def call(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with stopped_by_sigterm(self.stop):
            return run(self, *args, **kwargs)

    return call


class _Outcome(Protocol[T_co]):
    """An outcome in the loop: of one record, or of many."""

    def done(self) -> bool: ...
    def __await__(self) -> Generator[object, None, T_co]: ...


class Delivery(Generic[T]):
    """The outcome of a record that was sent, or of many."""

    def __init__(self, delivery: _Outcome[T], loop: EventLoopThread) -> None:
        self._delivery = delivery
        self._loop = loop

    def done(self) -> bool:
        """Return whether the outcome is known."""
        self._loop.require_own_process()
        return self._delivery.done()

    def result(self, timeout_seconds: float | None = None) -> T:
        """Wait until it is durable; return what awaiting the `headgate.Delivery` returns.

        Raises:
            TimeoutError: the outcome is unknown after ``timeout_seconds``; it can be asked for
                again.
            ConfigError: ``timeout_seconds`` is negative, or no number.
            HeadgateError: what awaiting a `headgate.Delivery` raises.
        """
        if timeout_seconds is not None:
            require_seconds("timeout_seconds", timeout_seconds, at_least=0.0)

        async def outcome() -> T:
            async with asyncio.timeout(timeout_seconds):
                return await self._delivery

        return self._loop.run(outcome())


def _delivering(
    send: Callable[Concatenate[ClientT, P], Coroutine[Any, Any, _Outcome[T]]],
) -> Callable[Concatenate[_Facade[ClientT], P], Delivery[T]]:
    """Return ``send`` as a method that does not wait for the outcome of the record."""

    @functools.wraps(send)
    def call(self: _Facade[ClientT], /, *args: P.args, **kwargs: P.kwargs) -> Delivery[T]:
        return Delivery(self._loop.run(send(self._client, *args, **kwargs)), self._loop)

    return call


class Producer(_Facade[producer.Producer]):
    """Sends keyed records. See `headgate.Producer`."""

    @_connecting(producer.Producer)
    def __init__(self) -> None: ...

    send = _delivering(producer.Producer.send)
    send_many = _delivering(producer.Producer.send_many)
    send_and_wait = _blocking(producer.Producer.send_and_wait)
    open = _blocking(producer.Producer.open)
    flush = _blocking(producer.Producer.flush)

    @property
    def source_position(self) -> bytes | None:
        """See `headgate.Producer.source_position`."""
        self._loop.require_own_process()
        return self._client.source_position

    def metrics(self) -> ProducerMetrics:
        """Return what this producer has counted."""
        self._loop.require_own_process()
        return self._client.metrics()

    def close(self, timeout_seconds: float | None = None) -> ProducerMetrics:
        """Flush for at most ``timeout_seconds`` (None: the delivery timeout), close, and return the final metrics."""
        if not self._closed:
            try:
                self._loop.run(self._client.close(timeout_seconds))
            finally:
                self.__exit__()
        return self.metrics()


class Consumer(_Facade[consumer.Consumer]):
    """Receives the records of one subscription. See `headgate.Consumer`."""

    @_connecting(consumer.Consumer)
    def __init__(self) -> None: ...

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Iterate over records as they arrive, until another thread closes the consumer."""
        return self

    def __next__(self) -> ConsumedRecord:
        """Return the next record; the errors are those of `headgate.Consumer`."""
        try:
            return self._loop.run(self._client.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def until_caught_up(self) -> Iterator[ConsumedRecord]:
        """Iterate over records until everything is read. See `headgate.Consumer.until_caught_up`."""
        records = self._client.until_caught_up()

        async def next_record() -> ConsumedRecord | None:
            return await anext(records, None)

        while (record := self._loop.run(next_record())) is not None:
            yield record

    def __exit__(self, *exception: object) -> None:
        """Close. Raises HeadgateError: a handler or callback calls it, and it would wait for that."""
        if not self._closed:
            self._client.refuse_own_caller("close")
        super().__exit__(*exception)

    run = _until_sigterm(_blocking(consumer.Consumer.run))
    get_many = _blocking(consumer.Consumer.get_many)
    acknowledge = _blocking(consumer.Consumer.acknowledge)
    park = _blocking(consumer.Consumer.park)
    negative_acknowledge = _blocking(consumer.Consumer.negative_acknowledge)
    extend = _blocking(consumer.Consumer.extend)
    flush = _blocking(consumer.Consumer.flush)
    seek = _blocking(consumer.Consumer.seek)
    caught_up = _blocking(consumer.Consumer.caught_up)

    def stop(self) -> None:
        """End `run` and every iteration, without waiting for it. See `headgate.Consumer.stop`."""
        self._loop.call_soon(self._client.stop)

    @property
    def name(self) -> str:
        """Name of this consumer in its subscription."""
        return self._client.name

    @property
    def positions(self) -> str:
        """See `headgate.Consumer.positions`."""
        return self._read(lambda: self._client.positions)

    @property
    def topic_id(self) -> int:
        """See `headgate.Consumer.topic_id`."""
        return self._read(lambda: self._client.topic_id)

    @property
    def segments(self) -> list[SegmentId]:
        """The segments that are held now."""
        return self._read(lambda: self._client.segments)

    def metrics(self) -> ConsumerMetrics:
        """Return what this consumer has counted."""
        self._loop.require_own_process()
        return self._client.metrics()

    def close(self) -> None:
        """Flush acknowledgements and leave; a few seconds at most. The error is that of `headgate.Consumer.close`."""
        self.__exit__()


class Admin(_Facade[admin.Admin]):
    """Manages topics, named producers and subscriptions. See `headgate.Admin`."""

    @_connecting(admin.Admin)
    def __init__(self) -> None: ...

    def bound_to(self, seen: admin.Seen | None) -> Self:
        """As `headgate.Admin.bound_to`. Close the original."""
        bound = copy.copy(self)
        bound._client = self._client.bound_to(seen)  # noqa: SLF001 - of its own class
        return bound

    ledger_url = _blocking(admin.Admin.ledger_url)
    create_topic = _blocking(admin.Admin.create_topic)
    import_topic = _blocking(admin.Admin.import_topic)
    list_topics = _blocking(admin.Admin.list_topics)
    describe_topic = _blocking(admin.Admin.describe_topic)
    seen = _blocking(admin.Admin.seen)
    pruned_ends = _blocking(admin.Admin.pruned_ends)
    topic_settings = _blocking(admin.Admin.topic_settings)
    leader_of = _blocking(admin.Admin.leader_of)
    split = _blocking(admin.Admin.split)
    merge = _blocking(admin.Admin.merge)
    set_topic_policy = _blocking(admin.Admin.set_topic_policy)
    prune_topic = _blocking(admin.Admin.prune_topic)
    delete_topic = _blocking(admin.Admin.delete_topic)
    list_producers = _blocking(admin.Admin.list_producers)
    describe_producer = _blocking(admin.Admin.describe_producer)
    delete_producer = _blocking(admin.Admin.delete_producer)
    list_subscriptions = _blocking(admin.Admin.list_subscriptions)
    backlog = _blocking(admin.Admin.backlog)
    describe_cluster = _blocking(admin.Admin.describe_cluster)
    transfer_shard = _blocking(admin.Admin.transfer_shard)
    raise_feature_level = _blocking(admin.Admin.raise_feature_level)
    set_maintenance = _blocking(admin.Admin.set_maintenance)
    set_shards = _blocking(admin.Admin.set_shards)
    describe_subscription = _blocking(admin.Admin.describe_subscription)
    explain = _blocking(admin.Admin.explain)
    plan = _blocking(admin.Admin.plan)
    create_subscription = _blocking(admin.Admin.create_subscription)
    evict_consumer = _blocking(admin.Admin.evict_consumer)
    delete_subscription = _blocking(admin.Admin.delete_subscription)
    seek = _blocking(admin.Admin.seek)
    set_order = _blocking(admin.Admin.set_order)
    set_delivery_policy = _blocking(admin.Admin.set_delivery_policy)
    parked_keys = _blocking(admin.Admin.parked_keys)
    resume_key = _blocking(admin.Admin.resume_key)

    def close(self) -> None:
        """Disconnect. A second call does nothing."""
        self.__exit__()
