"""The checks of `headgate doctor --daemon-config FILE`: what a daemon with these settings needs on this machine.

They use what the daemon uses: its settings and files, its elections, its store, the search for Java. Only the probe
object in the store is written. headgate.cli.cluster.judgements decides what a measurement means.
"""

import asyncio
import importlib.util
import io
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from controller.cli.run import read_settings
from controller.cluster.config import LedgerIdentity, read_config, require_unshared
from controller.connections.zookeeper import elections_root, zookeeper_elections
from controller.leadership.election import Connected, ElectionEvent, Refused
from controller.leadership.policy.instance_record import read_record
from controller.leadership.zookeeper.registry import ZooKeeperRegistry
from controller.local.data_folder import FREE_MEGABYTES
from controller.process.headroom import disk_usage, measured_folders
from controller.process.logs import configure_logging
from controller.settings.files import USES, check_files
from controller.settings.load import Settings, advertised_url, security_warnings
from controller.settings.sections import LogSettings
from drain.backlog.results import newest_result
from drain.checker.connection import Connection
from drain.checker.supervisor import SupervisorTimes
from drain.protocol import CountedLedger, DrainCheckError, Ping, Pong, wrong_ledger
from drain.spark.java import find_java
from headgate.cli.cluster import judgements as judge
from headgate.cli.cluster.client_checks import certificate_finding
from headgate.cli.cluster.judgements import Finding, ok, problem, warning
from headgate.errors import ConfigError, HeadgateError, StoreUnavailableError, TransportError
from headgate.extras import install_extra
from headgate.ledger.identity import read_ledger_id
from headgate.model.text import listed
from headgate.protocol.codec import daemon_client_id
from headgate.storage.object_store import open_store, write_problem
from headgate.transport.broker_probe import read_broker_properties
from headgate.transport.broker_tls import broker_tls
from headgate.transport.loopback import host_port
from web.server import reason


async def daemon_findings(path: Path, timeout_seconds: float) -> list[Finding]:
    # What ZooKeeper's client logs is in the findings.
    configure_logging(LogSettings(level="error"), io.TextIOWrapper(io.BytesIO()), instance="doctor")
    try:
        settings = read_settings(path)
        check_files(settings, path)
    except ConfigError as error:
        return [problem("settings", str(error), f"correct it; then: headgate check-config --config {path}")]
    found = [ok("settings", f"{path} is valid, and so are the files that it names")]
    found += [warning("settings", each, "see docs/security.md") for each in security_warnings(settings)]
    for use in USES:
        section = getattr(settings, use)
        names = [each for each in section.__struct_fields__ if each.endswith(("certificate_file", "ca_file"))]
        found += [certificate_finding(f"{use}.{each}", file) for each in names if (file := getattr(section, each))]
    found += _folders(settings)
    found += await asyncio.to_thread(_spark, settings)
    found += await _zookeeper(settings, timeout_seconds)
    found += await _broker(settings, timeout_seconds)
    found += await _store(settings)
    found += await counted_ledger(settings, SupervisorTimes().ping)  # As patient as a daemon: it counts meanwhile.
    return found


def _folders(settings: Settings) -> list[Finding]:
    found = []
    for use, folder in measured_folders(settings).items():
        try:
            exists = folder.is_dir()
        except OSError as error:
            remedy = "correct it, or run this as the user of the daemon, who must be able to enter the folders above it"
            found.append(problem(f"{use} folder", f"{folder}: {error.strerror}", remedy))
            continue
        mode = folder.stat().st_mode if exists else 0
        writable = exists and os.access(folder, os.W_OK | os.X_OK)
        facts = {"exists": exists, "writable": writable, "is_ledger": use == "ledger"}
        found.append(judge.judge_folder(f"{use} folder", str(folder), mode=mode, **facts))
        usage, needed_bytes = disk_usage(folder), FREE_MEGABYTES * 1_000_000
        space = usage.free_bytes, usage.size_bytes, needed_bytes
        found.append(judge.judge_space(f"{use} space", str(folder), *space, lacks_inodes=usage.lacks_inodes))
    return found


def _spark(settings: Settings) -> list[Finding]:
    drain = settings.drain
    if drain.results is not None:
        return [ok("Spark", f"not needed here: results are read from {drain.results}")]
    if not drain.spawn:
        return [ok("Spark", f"not started by this daemon: another program serves {settings.drain_socket}")]
    if importlib.util.find_spec("pyspark") is None:
        remedy = install_extra("spark", "headgate-daemon")
        return [problem("Spark", "pyspark is not installed, so nothing counts backlogs", remedy)]
    found = [ok("Spark", f"pyspark {version('pyspark')}, master {drain.master}")]
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-java-") as wrappers:
            found.append(ok("Java", str(find_java(Path(wrappers)))))
    except ConfigError as error:
        text, _, remedy = str(error).partition(". ")
        found.append(problem("Java", text, remedy))
    return found


async def _zookeeper(settings: Settings, timeout_seconds: float) -> list[Finding]:
    hosts = settings.zookeeper.hosts
    news = asyncio.Event()
    refused: list[str] = []

    def on_event(event: ElectionEvent) -> None:
        if isinstance(event, Refused) and event.problem is not None:
            refused.append(event.problem)
        if isinstance(event, Connected) or refused:
            news.set()

    began = time.monotonic()
    async with zookeeper_elections(settings, "doctor", on_event) as elections:
        try:
            async with asyncio.timeout(timeout_seconds):
                await news.wait()
        except TimeoutError:
            text = f"{hosts} did not answer within {timeout_seconds:g} s"
            return [problem("ZooKeeper", text, "start it, or correct [zookeeper] hosts"), await _http(settings, {})]
        seconds = time.monotonic() - began
        instances = await elections.registry.instances()
        if instances is None and await elections.registry.maintenance() is None:  # A missing folder is an empty one.
            refused.append(f"{hosts} does not let this user read the nodes of cluster {settings.cluster.name}")
        http = await _http(settings, instances or {})
        if refused:
            return [problem("ZooKeeper", refused[0], "correct [zookeeper] username, password or certificates"), http]
        registered = "no daemon is registered yet" if not instances else f"daemons: {listed(sorted(instances))}"
        answers = ok("ZooKeeper", f"{hosts} answers in {seconds * 1000:.0f} ms; {registered}")
        return [answers, http, await _cluster(settings, elections.registry)]


async def _http(settings: Settings, live: Mapping[str, bytes]) -> Finding:
    """Return whether the daemon can listen, or does. ``live``: name and record of each registered daemon."""
    host, port = settings.http.host, settings.http.port
    address = host_port(host, port)
    own: set[str] = set()
    try:
        for *_, ip in await asyncio.get_running_loop().getaddrinfo(host, port):
            own.add(advertised_url(settings.http, host_port(str(ip[0]), port), socket.gethostname()))
        (await asyncio.start_server(lambda *_: None, host, port)).close()
    except OSError as error:
        if running := [name for name, record in live.items() if read_record(record).url in own]:
            return ok("HTTP", f"{address} is that of the running daemon {listed(sorted(running))}")
        remedy = "end the program that listens there, or correct [http] host and port"
        return problem("HTTP", f"cannot listen on {address}: {reason(error)}", remedy)
    return ok("HTTP", f"{address} is free" if port else f"any free port of {host}")


async def _cluster(settings: Settings, registry: ZooKeeperRegistry) -> Finding:
    """Return whether a daemon with these settings would join the cluster of this name."""
    store, url, node = open_store(settings.ledger.url), settings.ledger.url, f"{elections_root(settings)}/config"
    try:
        await require_unshared(registry, store, url)
        if config := await registry.config():
            read_config(config, settings, node)
            if known := config.get("ledger_id"):
                await LedgerIdentity(store, url=url, node=node, ledger_id=known, claim=registry.claim_ledger).require()
    except StoreUnavailableError as error:
        return problem("cluster", str(error), "mount the ledger, or correct [ledger] url")
    except HeadgateError as error:
        return problem("cluster", str(error), "correct [cluster] name or [ledger] url")
    return ok("cluster", f"{settings.cluster.name} {'has this ledger' if config else 'is a new one'}")


async def _broker(settings: Settings, timeout_seconds: float) -> list[Finding]:
    broker = settings.broker
    address = host_port(broker.host, broker.port)
    try:
        properties = await read_broker_properties(
            broker.host,
            broker.port,
            daemon_client_id(settings.cluster.name, f"doctor-{secrets.token_hex(4)}"),
            username=broker.username,
            password=broker.password(),
            tls=broker_tls(broker, broker.host, "$.broker."),
            timeout_seconds=timeout_seconds,
        )
    except TransportError as error:
        return [problem("daemon's broker", f"{address}: {error}", "check [broker] in the settings, and the broker")]
    return [replace(each, check=f"daemon's {each.check}") for each in judge.judge_broker(address, properties)]


async def _store(settings: Settings) -> list[Finding]:
    url = settings.ledger.url
    if (folder := measured_folders(settings).get("ledger")) is not None and not os.access(folder, os.X_OK):
        return []  # The folder has a finding, and the probe would create it.
    problem_found = await write_problem(open_store(url))
    if problem_found is None:
        return [ok("put-if-absent", f"{url} refuses to write an object twice")]
    remedy = "check [ledger] url, the rights in the store, and its credentials in the environment of the daemon"
    return [problem("put-if-absent", f"{url}: {problem_found}", remedy)]


CHECK: Final = "counted ledger"


async def counted_ledger(settings: Settings, timeout_seconds: float) -> list[Finding]:
    """Return whether Spark counts the ledger of ``settings``; nothing if there is nothing to compare yet."""
    drain, url = settings.drain, settings.ledger.url
    try:
        own = CountedLedger(await read_ledger_id(open_store(url), url) or "", url)
    except HeadgateError as error:
        return [problem(CHECK, str(error), "make the ledger readable, or correct [ledger] url")]
    if not own.ledger_id:
        return []  # No daemon has started on it.
    try:
        counted = await (_of_results(drain.results) if drain.results else _of_process(settings, timeout_seconds))
    except DrainCheckError as error:
        if drain.spawn and error.failure == "unreachable":
            return []  # The daemon does not run now, and starts the process itself.
        return [problem(CHECK, str(error), "wait while Spark starts, start it, or correct [drain] socket")]
    except HeadgateError as error:
        return [problem(CHECK, str(error), "correct [drain] results, or repair the store")]
    if counted is None:
        what = "what Spark counts" if drain.results is None else f"a result at {drain.results}"
        return [warning(CHECK, f"{what} is not known yet", "wait until it has counted, and repeat this")]
    if (reason := wrong_ledger(own, counted)) is not None:
        what, _, remedy = reason.partition(": start ")
        return [problem(CHECK, what, f"start {remedy}")]
    return [ok(CHECK, f"Spark counts {counted.url}, the ledger with the id {own.ledger_id}")]


async def _of_process(settings: Settings, timeout_seconds: float) -> CountedLedger | None:
    path = Path(settings.drain_socket)
    # Root may look at the process of the daemon's user, who owns the folder of the socket.
    owner = {path.parent.stat().st_uid} if os.geteuid() == 0 and path.parent.exists() else frozenset[int]()
    with closing(await Connection.open(path, timeout_seconds, users=owner)) as connection:
        return (await connection.request(Ping(name_ledger=True), Pong, timeout_seconds)).ledger


async def _of_results(url: str) -> CountedLedger | None:
    store = open_store(url)
    for folder in await store.folders("backlog"):
        result = await newest_result(store, int(folder.removeprefix("shard=")))
        if result.watermark:
            return CountedLedger(result.ledger_id, url)
    return None
