"""What names a stream of Kinesis; the rest of the adapter is in tests/contract/test_kinesis_contract.py."""

from datetime import UTC, datetime
from unittest.mock import Mock

import pytest

from headgate.errors import HeadgateError
from headgate.kinesis.stream import KinesisStream


async def test_a_stream_that_is_created_again_within_a_second_is_another_one() -> None:
    made = [{"StreamARN": "arn:s", "StreamCreationTimestamp": datetime.fromtimestamp(at, UTC)} for at in (9.1, 9.4)]
    hashes = {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}
    client = Mock()
    client.describe_stream_summary.side_effect = [{"StreamDescriptionSummary": each} for each in made]
    client.list_shards.return_value = {
        "Shards": [{"ShardId": "a", "HashKeyRange": hashes, "SequenceNumberRange": {"StartingSequenceNumber": "1"}}]
    }
    stream = KinesisStream(client, "s")
    await stream.shards()
    with pytest.raises(HeadgateError, match="deleted and created again"):
        await stream.shards()
    stream.close()
