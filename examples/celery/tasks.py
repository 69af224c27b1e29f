"""Celery tasks that store records.

Run them beside `headgate up`, with the topic web-orders, and a Redis on this machine: pip install . 'celery[redis]'

    celery --workdir examples/celery --app tasks worker --concurrency 4
    celery --workdir examples/celery --app tasks call tasks.store_order --args '["ann", 5]'

Celery forks its workers. A producer has a thread and a connection, which a fork does not copy, so each worker process
opens a producer of its own at its first task, and none is opened in the parent: no module-level `Producer()`.
"""

import functools
import json
import os
from typing import Any

from celery import Celery, Task
from celery.signals import worker_process_shutdown

from headgate import DeliveryFailedError, load_client_config
from headgate.sync import Producer

TOPIC = os.environ.get("TOPIC", "web-orders")
app = Celery("tasks", broker=os.environ.get("CELERY_BROKER_URL", "redis://localhost"))
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
app.config_from_envvar("CELERY_CONFIG_MODULE", silent=True)


@functools.cache
def producer() -> Producer:
    """Return this process' producer."""
    return Producer(load_client_config())


@worker_process_shutdown.connect
def close(**_: Any) -> None:
    """Send what waits, and disconnect: a worker process ends without the exit handlers of Python."""
    if producer.cache_info().currsize:
        producer().close()


# A task that fails with DeliveryUnknownError may have stored its record: a person decides. Celery repeats a task whose
# process is killed, which may store a record twice: a record names its task, so that a handler skips the second one.
@app.task(bind=True, autoretry_for=(DeliveryFailedError,), retry_backoff=True)
def store_order(self: Task, customer: str, total: int) -> list[int | None]:
    """Store an order, and return its segment and offset once it is durable."""
    value = json.dumps({"customer": customer, "total": total, "process": os.getpid()}).encode()
    stored = producer().send_and_wait(TOPIC, customer.encode(), value, headers={"task": self.request.id.encode()})
    return [stored.segment, stored.offset]
