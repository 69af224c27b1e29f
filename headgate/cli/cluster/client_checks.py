"""The checks of `headgate doctor` that every client can make: configuration, broker, cluster, store, clocks.

Each check ends within the time-out of the command. headgate.cli.cluster.judgements decides what a measurement means.
"""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from headgate.cli.cluster import judgements as judge
from headgate.cli.cluster.judgements import Finding, ok, problem, warning
from headgate.errors import ConfigError, HeadgateError, RequestRejectedError, TransportError
from headgate.files.tls import certificate_expiry
from headgate.ledger.ledger import Ledger
from headgate.storage.object_store import open_store
from headgate.transport.broker_probe import read_broker_properties

if TYPE_CHECKING:
    from headgate.cli.context import CommandContext
    from headgate.settings.config import ClientConfig

STORE_SECONDS: Final = 10.0
"""A bucket that does not answer is given up: obstore repeats a request for 8 s."""


async def client_findings(context: CommandContext) -> list[Finding]:
    began_wall, began_monotonic = _wall_ms(), time.monotonic()
    try:
        config = context.client_config()
        config.password()
    except ConfigError as error:
        return [problem("configuration", str(error), "correct it, or name another one with --config")]
    file = config.file or "the client configuration"
    found = [ok("configuration", f"{file}: cluster {config.cluster}")]
    found += [
        certificate_finding(setting, path)
        for setting, path in (("ca_file", config.ca_file), ("certificate_file", config.certificate_file))
        if path is not None
    ]
    broker, cluster = await asyncio.gather(_broker(config, context), _cluster(config, context))
    if isinstance(broker, TransportError):
        unknown = "it does not say what it accepts"
        if any(each.check == "leaders" for each in cluster):
            found.append(warning("broker", f"{unknown}: {broker}", "see that it accepts packets of 5 MB and QoS 1"))
    else:
        found += broker
    found += cluster
    found.append(await _store(config))
    return [*found, *judge.judge_clock_steps((_wall_ms() - began_wall) / 1000, time.monotonic() - began_monotonic)]


def certificate_finding(setting: str, path: str) -> Finding:
    """Return how long the certificate in ``path``, which ``setting`` names, is still valid. Raises ConfigError."""
    return judge.judge_certificate(setting, path, certificate_expiry(path, setting).timestamp(), _wall_ms() / 1000)


async def _broker(config: ClientConfig, context: CommandContext) -> list[Finding] | TransportError:
    try:
        properties = await read_broker_properties(
            config.broker_host,
            config.broker_port,
            f"doctor-{time.monotonic_ns():x}",
            username=config.username,
            password=config.password(),
            tls=config.broker_tls(),
            timeout_seconds=context.wait_seconds(),
        )
    except TransportError as error:
        return error
    return judge.judge_broker(config.broker, properties)


async def _cluster(config: ClientConfig, context: CommandContext) -> list[Finding]:
    try:
        async with context.open_admin() as admin:
            announced = await admin.ledger_url()
            asked_ms = _wall_ms()
            cluster = await admin.describe_cluster(blocked=True)
            answered_ms = _wall_ms()
    except RequestRejectedError as error:
        return [warning("cluster", str(error), "this check needs the right to describe all topics")]
    except HeadgateError as error:
        remedy = "start or repair what the line above names; then run: headgate status"
        return [problem("cluster", str(error), remedy)]
    return [
        *judge.judge_cluster(cluster, version("headgate-client")),
        *judge.judge_clock(cluster, asked_ms, answered_ms),
        *judge.judge_ledger_url(config.ledger_url, announced, config.file or "the client configuration"),
    ]


async def _store(config: ClientConfig) -> Finding:
    began = time.monotonic()
    remedy = "check ledger_url, the network, and the credentials of the store in the environment"
    try:
        async with asyncio.timeout(STORE_SECONDS):
            newest = await Ledger(open_store(config.ledger_url), 0).newest()
    except HeadgateError as error:
        return problem("store", str(error), remedy)
    except TimeoutError:
        return problem("store", f"{config.ledger_url} did not answer within {STORE_SECONDS:g} s", remedy)
    return judge.judge_store(config.ledger_url, newest, time.monotonic() - began)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
