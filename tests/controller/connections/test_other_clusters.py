"""Another cluster of the same name on the broker is reported, and this one is described again."""

import asyncio
import itertools

import pytest
from structlog.testing import capture_logs

from controller.connections.broker import DESCRIBE_AGAIN_SECONDS, MAX_OTHER_CLUSTERS, OtherClusters
from headgate.protocol import codec
from headgate.protocol.codec import ClusterDescription

OWN, COPY = "a" * 32, "c" * 32


@pytest.mark.looptime
async def test_each_other_ledger_is_reported_once_and_contradicted_at_a_steady_pace() -> None:
    def described(ledger_id: str) -> ClusterDescription:
        return ClusterDescription(protocol=2, shards=4, ledger_url=f"file:///{ledger_id}", ledger_id=ledger_id)

    published, loop = list[float](), asyncio.get_running_loop()
    others = OtherClusters(lambda: described(OWN), lambda: published.append(loop.time()))
    with capture_logs() as logs:
        for payload in [*map(codec.encode, map(described, (OWN, "", "forged", COPY, OWN, COPY))), b"\xc1"]:
            others.on_message("headgate/a/cluster", payload)
        assert [f"file:///{COPY}"] == [each["other_ledger_url"] for each in logs]
        for number in range(2 * MAX_OTHER_CLUSTERS):
            others.on_message("headgate/a/cluster", codec.encode(described(f"{number:032x}")))
            await asyncio.sleep(1)

    assert len(logs) == MAX_OTHER_CLUSTERS
    assert {DESCRIBE_AGAIN_SECONDS} == {later - earlier for earlier, later in itertools.pairwise(published)}
