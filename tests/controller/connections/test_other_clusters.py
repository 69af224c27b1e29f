"""Another cluster of the same name on the broker is reported."""

import random

import pytest
from structlog.testing import capture_logs

from controller.connections.broker import MAX_OTHER_CLUSTERS, BrokerConnection
from controller.leadership.session_secret import SessionSecret
from controller.settings.load import Settings
from controller.settings.sections import LedgerSettings
from headgate.protocol import messages as m
from tests.support.fakes.recording_observer import RecordingObserver


def described(ledger_id: str) -> m.ClusterDescription:
    return m.ClusterDescription(protocol=2, shards=4, ledger_url=f"file:///{ledger_id}", ledger_id=ledger_id)


def test_each_other_ledger_is_reported_once_and_gets_this_description(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, published = Settings(ledger=LedgerSettings(url="file:///own")), list[bytes]()
    connection = BrokerConnection(settings, RecordingObserver(), random.Random(1))
    connection.describe = lambda: described("own")
    transport = connection.transport("a", SessionSecret(SessionSecret.new_digits()))
    monkeypatch.setattr(transport, "publish", lambda _, payload, **__: published.append(payload))
    [on_message] = transport.router.handlers_of(topic := m.cluster_topic(settings.cluster.name), retained=False)
    with capture_logs() as logs:
        for payload in [*map(m.encode, map(described, ("own", "", "copy", "own", "copy"))), b"\xc1"]:
            on_message(topic, payload)
        assert [("file:///own", "file:///copy")] == [(each["ledger_url"], each["other_ledger_url"]) for each in logs]
        for number in range(2 * MAX_OTHER_CLUSTERS):
            on_message(topic, m.encode(described(f"forged-{number}")))
    assert (MAX_OTHER_CLUSTERS, [m.encode(described("own"))] * MAX_OTHER_CLUSTERS) == (len(logs), published)
