"""SIGHUP to a running daemon switches pipelining off and on under a producer, without a new leader term."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from controller.settings.sections import ClusterSettings, IngestSettings, LogSettings
from headgate import Producer, ProducerSettings
from headgate.protocol import messages as m
from tests.support.fakes.fault_injecting_transport import FaultInjectingTransport
from tests.support.servers.programs import TEST_SECONDS, wait_until
from tests.support.worlds.ingest_environment import (
    IngestCluster,
    RequestSender,
    assert_stored_exactly,
    fault_transport_of,
    outcomes,
    send,
)

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]


class InFlight:
    """Counts batches in flight, and remembers the maximum."""

    def __init__(self, transport: FaultInjectingTransport) -> None:
        self.now: set[int] = set()
        self.most = 0
        transport.on_request = self._request
        transport.on_reply = self._reply

    def _request(self, request: m.Request) -> list[tuple[float, m.Request]]:
        if isinstance(request.body, m.ProduceBatch):
            self.now.add(request.request_id)
            self.most = max(self.most, len(self.now))
        return [(0.0, request)]

    def _reply(self, reply: m.AnyReply) -> list[tuple[float, m.AnyReply]]:
        if isinstance(reply, m.Reply):
            self.now.discard(reply.request_id)
        return [(0.0, reply)]


async def test_pipelining_can_be_switched_off_and_on_under_a_producer(tmp_path: Path) -> None:
    async with IngestCluster(tmp_path, session_seconds=30) as ingest:
        await ingest.start_servers()
        daemon = await ingest.start_daemon("only")
        await daemon.until_leading()
        topic, settings = await ingest.topic(), daemon.settings
        async with ingest.client() as client, Producer(client, settings=ProducerSettings(batch_bytes=200)) as producer:
            in_flight, sender = InFlight(fault_transport_of(client)), RequestSender(client, 0)
            epoch = await sender.epoch()
            results, most = [], []
            for begin, on in enumerate((True, False, True)):
                log = LogSettings(format="json", level="debug")
                ingest.reload(settings.replace(log=log, ingest=IngestSettings(pipelining=on)))
                await wait_until(lambda on=on: announced(client.leader(0)) == on, "the switch is announced")
                in_flight.most = 0
                deliveries = await send(producer, topic, range(begin * 300, begin * 300 + 300))
                results += await outcomes(deliveries)
                most.append(in_flight.most)
            assert epoch == await sender.epoch()
        other = ClusterSettings(name=ingest.name, shards=3)
        ingest.reload(settings.replace(cluster=other, log=LogSettings(format="text")))
        await wait_until(lambda: daemon.log_entries("log.format"), "the log names what needs a restart")
        restart = daemon.log_entries("settings.needs_restart")
        (tmp_path / "only.toml").write_text("[ingest]\npipelinig = true\n")
        daemon.process.send_signal(signal.SIGHUP)
        await wait_until(lambda: daemon.log_entries("settings.invalid"), "the log names the error")
        assert "pipelinig" in daemon.log_entries("settings.invalid")[0]["error"]
        assert await daemon.leads() == 2

        await assert_stored_exactly(ingest, topic, range(900), results)
    assert [True, 1, True] == [most[0] > 1, most[1], most[2] > 1]
    assert ["cluster.shards", "log.format"] == [each["setting"] for each in restart]
    assert daemon.log_entries("settings.reloaded")[1]["applied"] == ["ingest.pipelining"]


def announced(known: m.LeaderAnnouncement | None) -> bool | None:
    return None if known is None else known.pipelining
