"""Client configurations with defaults for everything that a test does not care about."""

from typing import Any

from headgate.settings.config import ClientConfig


def client_config(**fields: Any) -> ClientConfig:
    defaults = {"cluster": "local", "broker_host": "127.0.0.1", "broker_port": 1883, "ledger_url": "memory:///"}
    return ClientConfig(**defaults | fields)
