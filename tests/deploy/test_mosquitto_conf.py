"""The shipped mosquitto settings match those of `headgate up`."""

import subprocess
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from controller.local.embedded import MOSQUITTO_ENVIRON, MOSQUITTO_SETTINGS
from headgate.transport.mqtt import MqttTransport
from tests.support.samples.secret_files import write_secret
from tests.support.servers.tls_broker import TlsBroker
from tests.support.waiting import until

SHIPPED = Path(__file__).parents[2] / "deploy" / "mosquitto.conf"


def settings(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split(" ", 1) for line in lines)


def test_the_shipped_limits_are_those_of_headgate_up() -> None:
    shipped = settings(SHIPPED.read_text())

    assert {name: shipped.get(name) for name in MOSQUITTO_SETTINGS} == MOSQUITTO_SETTINGS
    assert "# Environment=" + " ".join(map("=".join, MOSQUITTO_ENVIRON.items())) in SHIPPED.read_text().splitlines()


def test_anonymous_clients_are_rejected() -> None:
    assert settings(SHIPPED.read_text())["allow_anonymous"] == "false"


def shipped_broker(folder: Path) -> TlsBroker:
    """Return a broker with the shipped settings, and files in ``folder``, whose only user is till."""
    broker = TlsBroker(folder)
    passwords, acl = write_secret(folder / "passwords", b"till:sesame\n"), write_secret(folder / "acl", b"")
    subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True, timeout=60)
    here = {"password_file": passwords, "acl_file": acl, "listener": None, "persistence_location": f"{folder}/"}
    here |= {name: broker.settings[name] for name in ("certfile", "keyfile")}
    shipped = {name: here.get(name, value) for name, value in settings(SHIPPED.read_text()).items()}
    broker.settings = {name: value for name, value in shipped.items() if value is not None}
    return broker


@pytest.mark.contract
async def test_the_shipped_broker_admits_users_over_tls_only(tmp_path: Path) -> None:
    broker = shipped_broker(tmp_path)
    async with broker, AsyncExitStack() as stack:
        for tls, user, password, reason in (
            (broker.tls, "till", "sesame", None),
            (broker.tls, "till", "guess", "the broker refuses user till: Not authorized"),
            (broker.tls, None, None, "the broker refuses a client without user name: Not authorized"),
            (None, "till", "sesame", "the broker closed the connection before it answered; if this port uses TLS"),
        ):
            transport = MqttTransport(broker.host, broker.port, f"{reason}", username=user, password=password, tls=tls)
            await stack.enter_async_context(transport)
            await until(lambda one=transport: one.connected or one.unreachable_reason is not None)
            assert transport.connected == (reason is None)
            assert (transport.unreachable_reason or "").startswith(reason or "")
