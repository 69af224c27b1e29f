"""Objects that a task of Spark writes: what is stored decides, not what the store answers."""

import obstore.store
import pyarrow as pa
import pytest

from drain.compaction.object_writer import RECORD_COLUMNS, write_object
from drain.spark.object_reader import ObjectError
from tests.support.servers.s3_server import BUCKET, s3_server


@pytest.mark.contract
def test_an_object_is_written_by_a_bucket_that_does_not_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({name: [0] for name in RECORD_COLUMNS})
    with s3_server() as s3:
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        store = obstore.store.from_url(f"s3://{BUCKET}", retry_config={"max_retries": 0})
        s3.failures += ["500", "503"]

        assert write_object(store, "stored", (1, 2), rows)["end_offset"] == 1
        with pytest.raises(ObjectError, match=r"not-stored.* 503 "):
            write_object(store, "not-stored", (1, 2), rows)
