"""The broker: its connection, and the registration of publishers and subscribers."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import BrokerRouter
from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import DefaultCodec
from faststream.middlewares import AckPolicy
from faststream.specification.schema import BrokerSpec

from headgate import Admin, ClientConfig, HeadgateError, Producer, RecordMetadata, RetryPolicy, load_client_config
from headgate.client.admin import subscription_type
from headgate.errors import ConfigError
from headgate.model.entries import SubscriptionType
from headgate_faststream import publisher as publishing
from headgate_faststream import subscriber as subscribing
from headgate_faststream.messages import Delivery, HeadgatePublishCommand, Key


@dataclass(kw_only=True)
class HeadgateBrokerConfig(BrokerConfig):
    client_config: ClientConfig | None = None


class _LoggerStorage(DefaultLoggerStorage):
    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Keep the format: topics have names of any length."""

    def get_logger(self, *, context: ContextRepo) -> Any:
        form = "%(asctime)s %(levelname)-8s - %(topic)s | %(message_id)s - %(message)s"
        fields = {"topic": "", "message_id": ""}
        return self._get_logger_ref() or get_broker_logger(
            name="headgate", default_context=fields, message_id_ln=10, fmt=form, context=context, log_level=logging.INFO
        )


class HeadgateRegistrator(Registrator[Delivery, HeadgateBrokerConfig]):
    """Registers publishers and subscribers; a broker and a router are one."""

    def subscriber(
        self,
        topic: str,
        *,
        subscription: str,
        type: SubscriptionType | str = SubscriptionType.STREAM,
        max_workers: int = 1,
        retry: RetryPolicy | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Iterable[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        persistent: bool = True,
        **consumer: Any,
    ) -> subscribing.HeadgateSubscriber:
        """Call a handler for each record of a subscription.

        Args:
            topic: what to read.
            subscription: whose position to use. It is created if it does not exist.
            type: STREAM or QUEUE.
            max_workers: calls of the handler at the same time. Records of one key are handled one after the other.
            retry: what happens to records that are nacked or rejected; see `headgate_faststream.subscriber`.
            ack_policy: what an error in the handler means. Default: NACK_ON_ERROR.
            no_reply: do not send what the handler returns to the topic in `reply-to`.
            consumer: further arguments of `headgate.Consumer`: ``name``, ``start``, ``balance``, ``capacity``.

        The others are those of every FastStream broker.
        """
        kind = subscription_type(type)
        if kind == SubscriptionType.CHECKPOINT:
            raise ConfigError("type=CHECKPOINT: its positions belong to the program: use headgate.Consumer")
        config = subscribing.HeadgateSubscriberConfig(
            topic=topic,
            subscription=subscription,
            kind=kind,
            concurrency=max_workers,
            retry=subscribing.retry_policy(kind, retry),
            consumer=consumer,
            no_reply=no_reply,
            _ack_policy=ack_policy,
            _outer_config=self.config,
        )
        described = subscribing.HeadgateSubscriberSpecificationConfig(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
        )
        calls: CallsCollection[Any] = CallsCollection()
        specification = subscribing.HeadgateSubscriberSpecification(self.config, described, calls)
        made = subscribing.HeadgateSubscriber(config, specification, calls)
        super().subscriber(made, persistent=persistent)
        return made.add_call(
            parser_=parser or self._parser, decoder_=decoder or self._decoder, dependencies_=dependencies
        )

    def publisher(
        self,
        topic: str,
        *,
        key: Key = None,
        headers: dict[str, str] | None = None,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        persistent: bool = True,
    ) -> publishing.HeadgatePublisher:
        """Publish to a topic: with `publish`, or, as a decorator, what a handler returns.

        ``key``: of each record without another one. Default: the key of the record that the handler has got, else the
        correlation id.
        """
        config = publishing.HeadgatePublisherConfig(
            topic=topic, key=key, headers=headers or {}, _outer_config=self.config
        )
        described = publishing.HeadgatePublisherSpecificationConfig(
            topic=topic, schema_=schema, title_=title, description_=description, include_in_schema=include_in_schema
        )
        specification = publishing.HeadgatePublisherSpecification(self.config, described)
        made = publishing.HeadgatePublisher(config, specification)
        super().publisher(made, persistent=persistent)
        return made


class HeadgateRouter(HeadgateRegistrator, BrokerRouter[Delivery]):
    """Publishers and subscribers that a broker includes, with a prefix of their topics."""

    def __init__(self, prefix: str = "", *, middlewares: Sequence[Any] = (), dependencies: Iterable[Any] = ()) -> None:
        config = HeadgateBrokerConfig(
            prefix=prefix, broker_middlewares=middlewares, broker_dependencies=tuple(dependencies)
        )
        super().__init__(handlers=(), config=config, routers=())


class HeadgateBroker(HeadgateRegistrator, BrokerUsecase[Delivery, Producer]):
    """A cluster of headgate.

    Args:
        config: the cluster: a `ClientConfig`, or the path of a ``client.toml``. None: found as programs find theirs.
        ack_policy: of subscribers that name none.

    The others are those of every FastStream broker.
    """

    def __init__(
        self,
        config: ClientConfig | str | Path | None = None,
        *,
        ack_policy: AckPolicy = EMPTY,
        decoder: Any = None,
        parser: Any = None,
        dependencies: Iterable[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[HeadgateRegistrator] = (),
        graceful_timeout: float | None = 30.0,
        description: str | None = None,
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
    ) -> None:
        self._given = config
        make_state = partial(make_logger_state, default_storage_cls=_LoggerStorage)
        super().__init__(
            routers=routers,
            config=HeadgateBrokerConfig(
                producer=publishing.HeadgateProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                logger=make_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=dependency_provider,
                    context=ContextRepo(),
                ),
                broker_dependencies=tuple(dependencies),
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                description=description,
                url=["headgate"],
                protocol="headgate",
                protocol_version="2",
                tags=(),
                security=None,
            ),
        )

    async def _connect(self) -> Producer:
        own = self.config.broker_config
        own.client_config = self._given if isinstance(self._given, ClientConfig) else load_client_config(self._given)
        own.producer.producer = await Producer(own.client_config).__aenter__()
        own.producer.serializer, own.producer.codec = own.fd_config._serializer, own.broker_codec or DefaultCodec()
        return own.producer.producer

    async def start(self) -> None:
        """Connect, and start every subscriber."""
        await self.connect()
        await super().start()

    async def stop(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> None:
        """Let handlers end, store their acknowledgements, and disconnect."""
        await super().stop(exc_type, exc_val, exc_tb)
        if self._connection is not None:
            await self._connection.close()
            self._connection: Producer | None = None
            self.config.broker_config.producer.producer = None

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether a leader replies in time."""
        with suppress(HeadgateError):
            async with Admin(self.config.broker_config.client_config, timeout_seconds=timeout or 5.0) as admin:
                return bool(await admin.describe_cluster())
        return False

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        key: Key = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> RecordMetadata:
        """Store a record, and return where it is.

        ``key``: records of one key stay in order; None: the correlation id. Raises as `Producer.send_and_wait`.
        """
        identifier = correlation_id or self.config.id_generator()
        fields = {"headers": headers, "correlation_id": identifier, "reply_to": reply_to}
        cmd = HeadgatePublishCommand(message, destination=topic, key=key, **fields)
        return await self._basic_publish(cmd, producer=self.config.producer)

    async def request(self, *_: Any, **__: Any) -> Any:
        """Raise: there is no request and reply."""
        await self.config.producer.request(None)
