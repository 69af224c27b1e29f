"""Record a client history while a program runs, for `headgate verify-history` (headgate.client_history.judge).

    Producer(config, interceptors=[HistoryRecorder(path)])
    Consumer(config, topic="orders", subscription="billing", interceptors=[HistoryRecorder(path)])

1. Each event is one line of JSON, passed to the operating system before the program continues. Programs may share a
   file.
2. A record is named by a header, which `HistoryRecorder` adds. One without it is not part of the history.
3. Deliveries are those to the handler of `Consumer.run`, each attempt. Parked records have no place: they are stored in
   another topic.
4. ``content`` is a digest of key, value and the headers before ours. If another interceptor changes records, a recorder
   is the last one of a producer, and the first one of a consumer.
5. Times are those of the machine's clock. With programs on several machines its error must be below the time between
   two records that are compared; within one machine that holds unless its clock is set meanwhile.
"""

import os
import secrets
import time
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from headgate.client.consumed_record import ConsumedRecord
from headgate.client.interceptors import Handle, Interceptor, OutgoingRecord, Send
from headgate.client.producing.record_batch import Delivery
from headgate.errors import DeliveryFailedError, HeadgateError, RequestRejectedError
from headgate.model.headers import Headers

HEADER: Final = "history-record"


class HistoryRecorder(Interceptor):
    """Writes what one producer or consumer sees to a file."""

    def __init__(self, path: Path, *, ordered: bool = True, now: Callable[[], float] = time.time_ns) -> None:
        """``ordered``: False for the consumer of a QUEUE."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._ordered = ordered
        self._now = now
        self._random = secrets.token_hex(4)
        self._sent = 0

    def close(self) -> None:
        """Close the file, after the client is closed."""
        os.close(self._file)

    def intercept_send(self, send: Send) -> Send:
        async def recorded(record: OutgoingRecord) -> Delivery:
            sender = f"{self._random}-{os.getpid()}"  # A forked child has a copy of this object.
            name = f"{sender}-{self._sent}"
            self._sent += 1
            about = {"topic": record.topic, "record": name}
            key, content = record.key.decode("utf-8", "backslashreplace"), _content(record, record.headers)
            self._write("send", **about, key=key, sender=sender, content=content)
            try:
                delivery = await send(replace(record, headers=(*record.headers, (HEADER, name.encode()))))
            except HeadgateError:
                self._write("outcome", **about, outcome="not stored")
                raise
            delivery.when_known(partial(self._known, about))
            return delivery

        return recorded

    def intercept_handle(self, handle: Handle, *, subscription: str, consumer: str) -> Handle:
        async def recorded(records: list[ConsumedRecord]) -> object:
            for record in records:
                at = max((at for at, (name, _) in enumerate(record.headers) if name == HEADER), default=None)
                if at is not None:
                    self._write(
                        "delivery",
                        topic=record.topic,
                        subscription=subscription,
                        consumer=consumer,
                        record=record.headers[at][1].decode(),
                        content=_content(record, record.headers[:at]),
                        count=record.delivery_count,
                        generation=record.generation,
                        ordered=self._ordered,
                        **({} if record.parked_number else {"place": f"{record.segment}:{record.offset}"}),
                    )
            return await handle(records)

        return recorded

    def _known(self, about: dict[str, str], error: HeadgateError | None) -> None:
        certain = isinstance(error, DeliveryFailedError | RequestRejectedError)
        self._write("outcome", **about, outcome="stored" if error is None else "not stored" if certain else "unknown")

    def _write(self, event: str, **fields: Any) -> None:
        os.write(self._file, msgspec.json.encode({"event": event, "at": self._now()} | fields) + b"\n")


def _content(record: OutgoingRecord | ConsumedRecord, headers: Headers) -> str:
    return blake2b(msgspec.msgpack.encode((record.key, record.value, headers)), digest_size=8).hexdigest()
