"""Another cluster of the same name on the broker is reported."""

from structlog.testing import capture_logs

from controller.connections.broker import MAX_OTHER_CLUSTERS, OtherClusters
from headgate.protocol import messages as m


def test_each_other_ledger_is_reported_once_and_gets_the_description_of_this_one() -> None:
    def described(ledger_id: str) -> m.ClusterDescription:
        return m.ClusterDescription(protocol=2, shards=4, ledger_url=f"file:///{ledger_id}", ledger_id=ledger_id)

    published: list[int] = []
    others = OtherClusters(lambda: described("own"), lambda: published.append(1))
    with capture_logs() as logs:
        for payload in [*map(m.encode, map(described, ("own", "", "copy", "own", "copy"))), b"\xc1"]:
            others.on_message("headgate/a/cluster", payload)
        assert [("file:///own", "file:///copy")] == [(each["ledger_url"], each["other_ledger_url"]) for each in logs]
        for number in range(2 * MAX_OTHER_CLUSTERS):
            others.on_message("headgate/a/cluster", m.encode(described(f"forged-{number}")))

    assert MAX_OTHER_CLUSTERS == len(logs) == len(published)
