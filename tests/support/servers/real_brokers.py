"""The brokers that contract suites run against: the fake, mosquitto without and with TLS, amqtt, and rumqttd."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import pytest

from controller.local.embedded import EmbeddedBroker, EmbeddedServer, _is_broker_ready, find_mosquitto
from controller.local.reserved_port import ReservedPort
from controller.local.supervised_process import ProcessSpec
from headgate.process.child_process import python_module
from headgate.transport.broker_tls import BrokerTls
from tests.support.servers.tls_broker import TlsBroker

BrokerKind = Literal["mosquitto", "mosquitto-tls", "amqtt", "rumqttd"]
BROKERS = ["fake", *(pytest.param(kind, marks=pytest.mark.contract) for kind in get_args(BrokerKind))]
WAITING = "does not deliver messages that waited for a session: messages without a leader are lost"
UNHEARD = "does not say that a message met no subscriber"
LACKS = {
    "amqtt": {
        WAITING: "without_a_connection_wait|delivered_again|counts_only_on|takes_over|session_ends|added_only|once_after",
        "keeps both of two clients with one id, which is harmless": "with_the_same_id",
        UNHEARD: "met_a_subscriber",
    },
    "rumqttd": {
        "sends copies of retained messages to a session": "gets_no_copies",
        "keeps a session that is to end": "session_ends",
        "may publish the will of a client that has closed": "closing_publishes_no_will",
        "does not confirm that a filter was removed": "removed_filters|removed_only|added_only|once_after",
        UNHEARD: "met_a_subscriber",
    },
}
"""What a broker lacks → the tests that need it. docs/operations/install.md has the same table."""
LISTENER = """
[{version}.1]
name = "{version}"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 0
connections = {{ connection_timeout_ms = 60000, max_payload_size = 5242880, max_inflight_count = 1000, dynamic_filters = true }}
"""


class Rumqttd(EmbeddedServer):
    """rumqttd, as the package iotcore ships it: a port for MQTT 5, and another one for 3.1.1, which devices use."""

    def __init__(self, folder: Path) -> None:
        super().__init__("rumqttd", folder, 0, None)
        self._older = ReservedPort()
        self.devices_port = self._older.number

    async def stop(self) -> None:
        await super().stop()
        self._older.close()

    async def _process_spec(self, port: int) -> ProcessSpec:
        text = "id = 0\n[router]\nid = 0\nmax_connections = 1000\nmax_outgoing_packet_count = 1000\n"
        text += "max_segment_size = 104857600\nmax_segment_count = 10\n"
        text += LISTENER.format(version="v4", port=self.devices_port) + LISTENER.format(version="v5", port=port)
        (config := self.folder / "rumqttd.toml").write_text(text)
        command = python_module("iotcore", "--config", str(config), "--log-level", "ERROR")
        ready = partial(_is_broker_ready, self.devices_port, None)
        return ProcessSpec("rumqttd", command, self.folder / "rumqttd.log", ready)


def expect_to_fail(kind: str, test: str) -> None:
    """End a test as an expected failure if a broker of this kind lacks what it needs."""
    for lack, tests in LACKS.get(kind, {}).items():
        if re.search(tests, test):
            pytest.xfail(f"{kind} {lack}")


@asynccontextmanager
async def real_broker(folder: Path, kind: BrokerKind = "mosquitto") -> AsyncIterator[EmbeddedBroker]:
    """Run a broker of one kind; skip the test if it is not installed."""
    if kind.startswith("mosquitto") and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed; CI installs it, and amqtt runs everywhere")
    others = {"mosquitto-tls": TlsBroker, "rumqttd": Rumqttd}
    async with others[kind](folder) if kind in others else EmbeddedBroker(folder, kind=kind) as broker:
        yield broker


def tls_of(broker: EmbeddedBroker) -> BrokerTls | None:
    """Return how to encrypt connections to ``broker``; None: not at all."""
    return broker.tls if isinstance(broker, TlsBroker) else None
