"""What names a stream of Kinesis; the rest of the adapter is in tests/contract/test_kinesis_contract.py."""

from datetime import UTC, datetime
from unittest.mock import Mock

import pytest

from headgate.errors import ConfigError, HeadgateError
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


@pytest.mark.parametrize(
    ("variable", "value", "reason"), [("AWS_CONFIG_FILE", "none", "a region"), ("AWS_ENDPOINT_URL", "x", "endpoint: x")]
)
def test_aws_without_a_region_or_with_a_wrong_address_is_an_error_of_the_configuration(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    if variable == "AWS_ENDPOINT_URL":
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"^AWS is not configured: .*{reason}.* See AWS_DEFAULT_REGION"):
        KinesisStream(None, "s")
