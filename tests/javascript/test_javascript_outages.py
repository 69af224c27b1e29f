"""The client in JavaScript while its credentials have expired, while no daemon runs, and with a topic that does not exist."""

import asyncio
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from controller.local.broker_access import hash_password
from headgate import Admin
from tests.javascript.conftest import Start
from tests.support.servers.cluster import ONE_USER_OF_EACH_ROLE, Cluster, SecuredTestCluster
from tests.support.servers.programs import wait_until
from tests.support.servers.tls_broker import TlsBroker

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]


async def test_a_program_says_what_is_wrong_and_continues_once_its_token_is_renewed_and_a_daemon_runs_again(
    start: Start, tmp_path: Path
) -> None:
    async with SecuredTestCluster(tmp_path, shards=1, access=ONE_USER_OF_EACH_ROLE) as cluster:
        await cluster.start_leader()
        async with Admin(cluster.config_of("operator")) as admin:
            await admin.create_topic("orders", 1)
        (tokens := tmp_path / "tokens").mkdir()
        for user in ("shop", "billing"):
            (tokens / user).write_text(cluster.password_of(user))
        ledger = urlsplit(cluster.ledger_url).path
        program = await start(
            "steady.mjs", cluster, tmp_path / "steady.out", "--ledger", ledger, "--tokens", str(tokens)
        )

        def handled() -> list[int]:
            return [int(line.split()[1]) for line in program.lines() if line.startswith("handled")]

        def total() -> int | None:
            return next((int(line.split()[1]) for line in program.lines() if line.startswith("stored")), None)

        async def continues() -> None:
            count = len(handled())
            await wait_until(lambda: len(handled()) > count + 100, lambda: "\n".join(program.lines()[-3:]), 60)

        async def warns(text: str) -> None:
            await wait_until(
                lambda: any(text in line for line in program.lines() if line.startswith("warning")), text, 60
            )

        await continues()
        passwords = cluster.users.broker_access.password_file
        others = [line for line in passwords.read_text().splitlines() if line.split(":")[0] not in ("shop", "billing")]
        renewed = [f"{user}:{hash_password('renewed')}" for user in ("shop", "billing")]
        passwords.write_text("\n".join([*others, *renewed, ""]))
        await cluster.broker.restart()
        await warns("Not authorized; check username and password in the option mqtt, whether a token has expired")
        for user in ("shop", "billing"):
            (tokens / user).write_text("renewed")
        await continues()
        await cluster.stop("only")
        await warns("no leader of shard 0 has answered for 10 s")
        await cluster.start_daemon("only")
        await continues()
        program.send_signal(signal.SIGTERM)
        stored = await wait_until(total, "everything is stored", 60)
        await wait_until(lambda: len(handled()) >= stored, "everything is handled", 60)
        assert await program.terminate() == 0, program.errors()
        assert list(range(stored)) == sorted(handled())
        assert all(
            numbers == sorted(numbers) for key in range(7) for numbers in [[n for n in handled() if n % 7 == key]]
        )


async def test_each_connection_has_the_certificate_that_its_files_have_then(programs: Path, tmp_path: Path) -> None:
    """It has expired, and is renewed: the file of the certificate first, to which the old key does not belong."""
    long_ago = datetime(2001, 2, 3, tzinfo=UTC)
    async with TlsBroker(tmp_path, {"require_certificate": "true"}) as broker:
        own = broker.authority.issue("own", client=True, not_before=long_ago, not_after=long_ago + timedelta(days=1))
        new = broker.authority.issue("new", client=True)
        program = f"""
            import {{ copyFileSync, readFileSync }} from "node:fs";
            import {{ Producer }} from "@headgate/client";
            const [ca, cert, key] = ["{broker.authority.ca_file}", "{own.certificate_file}", "{own.key_file}"].map((path) => () => readFileSync(path));
            const producer = new Producer({{ host: "127.0.0.1", port: {broker.port}, cluster: "local", connectTimeoutMs: 1500, mqtt: {{ ca, cert, key }} }});
            const attempt = () => producer.open("orders").catch(({{ message }}) => message);
            const until = async (text) => {{ let found; do found = await attempt(); while (!found.includes(text)); console.log(found); }};
            await until("certificate expired");
            copyFileSync("{new.certificate_file}", "{own.certificate_file}");
            await attempt();
            copyFileSync("{new.key_file}", "{own.key_file}");
            await until("found no daemon");
            process.exit();
        """
        command = "node", "--no-warnings", "--input-type=module", "--eval", program
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=programs, capture_output=True, check=False, timeout=60
        )

    assert done.returncode == 0, done.stderr.decode()
    assert f"not connected within 1.5 s: broker 127.0.0.1:{broker.port}: " in done.stdout.decode()
    assert "check ca, cert and key in the option mqtt, and whether a certificate has expired\n" in done.stdout.decode()


async def test_a_topic_that_does_not_exist_is_named_with_a_near_one_and_no_failure_is_silent(
    programs: Path, cluster: Cluster
) -> None:
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "1")
    broker = f'{{ host: "127.0.0.1", port: {cluster.broker.port}, cluster: "{cluster.name}" }}'
    program = f"""
        import {{ Consumer, Producer }} from "@headgate/client";
        process.removeAllListeners("warning").on("warning", ({{ message }}) => console.log("warning", message));
        const record = {{ key: "k", value: "v" }};
        const silent = new Producer({broker});
        await silent.send("orders", [record]);
        await silent.send("ordres", [record]);
        await silent.close().catch(({{ message, verdict, cause }}) => console.log("close", verdict, cause.name, message));
        const asked = new Producer({broker});
        const {{ stored }} = await asked.send("unlike", [record]);
        await new Promise((resolve) => setTimeout(resolve, 1000));
        await stored.catch(({{ message }}) => console.log("stored", message));
        await asked.close();
        const reporting = new Producer({{ ...{broker}, onFailure: ({{ message }}, topic) => console.log("onFailure", topic, message) }});
        await reporting.send("order", [record]);
        await reporting.close();
        const names = {{ topic: "odrers", subscription: "billing", ledger: "{urlsplit(cluster.ledger_url).path}" }};
        await new Consumer({{ ...{broker}, ...names }}).open().catch(({{ message }}) => console.log("open", message));
    """
    command = "node", "--no-warnings", "--input-type=module", "--eval", program
    done = await asyncio.to_thread(subprocess.run, command, cwd=programs, capture_output=True, check=False, timeout=120)

    silent = "1 batches failed, and nothing has awaited their outcomes; the first one, for topic 'ordres':"
    near = "does not exist; did you mean 'orders'?"
    assert [
        f"warning a batch for topic 'ordres' failed, and nothing awaits its outcome: topic 'ordres' {near}",
        f"close invalid DeliveryFailedError {silent} topic 'ordres' {near}",
        "stored topic 'unlike' does not exist; there are: orders",
        f"onFailure order topic 'order' {near}",
        f"open topic 'odrers' {near}",
    ] == done.stdout.decode().splitlines(), done.stderr.decode()
    assert done.returncode == 0
