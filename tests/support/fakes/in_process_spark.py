"""A Spark session that runs `mapInArrow` in this process, with a copy of the function as a worker gets it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark import cloudpickle


class InProcessSpark:
    """Splits a range into tasks as Spark does, and runs one after the other."""

    def range(self, first: int, end: int, step: int, tasks: int) -> InProcessSpark:
        numbers = list(range(first, end, step))
        self._tasks = [numbers[at * len(numbers) // tasks : (at + 1) * len(numbers) // tasks] for at in range(tasks)]
        return self

    def mapInArrow(self, function: Any, _: Any) -> InProcessSpark:  # noqa: N802 - Spark's name
        batches = [pa.record_batch({"id": pa.array(task, pa.int64())}) for task in self._tasks]
        sent = cloudpickle.loads(cloudpickle.dumps(function))
        self._found = [batch for task in batches for batch in sent(iter([task]))]
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return pa.Table.from_batches(self._found)
