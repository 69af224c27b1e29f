"""What names a stream of Kinesis; the rest of the adapter is in tests/contract/test_kinesis_contract.py."""

import hashlib
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ConfigError, HeadgateError
from headgate.kinesis.position import MAGIC, Packed, hash_of, unpack
from headgate.kinesis.stream import KinesisStream


@pytest.mark.parametrize("times", [(9.1, 9.4), (9.1, 9.1, 9.4)])
async def test_a_stream_that_is_created_again_within_a_second_is_another_one(times: tuple[float, ...]) -> None:
    made = [{"StreamARN": "arn:s", "StreamCreationTimestamp": datetime.fromtimestamp(at, UTC)} for at in times]
    hashes = {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}
    client = Mock()
    client.describe_stream_summary.side_effect = [{"StreamDescriptionSummary": each} for each in made]
    client.list_shards.return_value = {
        "Shards": [{"ShardId": "a", "HashKeyRange": hashes, "SequenceNumberRange": {"StartingSequenceNumber": "1"}}]
    }
    stream = KinesisStream(client, "s")
    for _ in times[2:]:
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


# Records that the Kinesis Producer Library packs: bytes that ``aws_kinesis_agg`` 1.2.3 has written.


WHOLE = (0, 2**128 - 1)
MIDDLE = 2**127
PACKED = bytes.fromhex(
    "f3899ac20a0a637573746f6d65722d310a0a637573746f6d65722d320a086578706c696369740a02c3bc1227313730313431313833343630343639"
    "3233313733313638373330333731353838343130353732381a0508001a01611a0a08011a066262626262621a0408001a001a07080210001a01631a"
    "e50108031ae001" + bytes(range(200, 256)).hex() * 4 + "3a0bdcb0bdf5f8af75254c443fefad35"
)
RECORDS = [
    Packed(0, "customer-1", b"a"),
    Packed(1, "customer-2", b"bbbbbb"),
    Packed(2, "customer-1", b""),
    Packed(3, "explicit", b"c"),
    Packed(4, "ü", bytes(range(200, 256)) * 4),
]
HASHES = [hash_of("customer-1"), hash_of("customer-2"), hash_of("customer-1"), MIDDLE, hash_of("ü")]
"""``explicit`` was sent with this hash."""


@pytest.mark.parametrize("shard", [WHOLE, (0, MIDDLE - 1), (MIDDLE, WHOLE[1])])
def test_packed_records_are_those_of_the_shard(shard: tuple[int, int]) -> None:
    first, last = shard

    assert [each for each, hashed in zip(RECORDS, HASHES, strict=True) if first <= hashed <= last] == unpack(
        "customer-1", PACKED, shard
    )


@pytest.mark.parametrize(
    "data", [b"", b"plain", MAGIC, PACKED[:-1], PACKED[:-1] + b"\0", b"x" + PACKED, PACKED[:60] + b"\0" + PACKED[61:]]
)
def test_what_is_not_packed_is_one_record(data: bytes) -> None:
    assert [Packed(0, "k", data)] == unpack("k", data, WHOLE)


@given(st.binary(max_size=200))
def test_a_digest_that_is_right_by_chance_does_no_harm(message: bytes) -> None:
    data = MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()

    assert all(isinstance(each.data, bytes) for each in unpack("k", data, WHOLE))
