"""The package of the client in JavaScript; test_conformance.py and test_javascript_consumer.py run it."""

import subprocess
from pathlib import Path

import pytest

from tests.support.source_folders import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


def test_the_lock_file_names_no_registry_host() -> None:
    lock = (ROOT / "clients" / "javascript" / "package-lock.json").read_text()

    assert "integrity" in lock
    assert "resolved" not in lock
    assert "://" not in lock


def test_the_types_describe_the_package(programs: Path) -> None:
    tsc = programs.parent / "node_modules" / "typescript" / "bin" / "tsc"
    options = "--strict", "--noEmit", "--module", "nodenext", "--target", "es2022"
    done = subprocess.run(
        ("node", tsc, *options, programs / "typed.mts"), cwd=programs, capture_output=True, check=False
    )

    assert (0, b"") == (done.returncode, done.stdout)


def evaluate(programs: Path, source: str) -> list[str]:
    command = "node", "--input-type=module", "--eval", source
    done = subprocess.run(command, cwd=programs, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def test_a_client_that_reaches_no_broker_or_no_ledger_says_so(programs: Path) -> None:
    program = """
        import { Consumer, HeadgateError, Producer } from "@headgate/client";
        import { LedgerFolder } from "../node_modules/@headgate/client/src/ledger.mjs";
        const broker = { host: "127.0.0.1", port: 1, cluster: "local", connectTimeoutMs: 300 };
        const consumer = new Consumer({ ...broker, topic: "orders", subscription: "billing", ledger: "nowhere" });
        const ledger = new LedgerFolder("nowhere", 0n, "a");
        for (const open of [() => new Producer(broker).open("orders"), () => consumer.run(() => {}), () => ledger.check()])
            await open().catch((error) => console.log(error instanceof HeadgateError, error.message));
        process.exit();
    """

    producer, consumer, ledger = evaluate(programs, program)
    assert "true not connected within 0.3 s: the broker: connect ECONNREFUSED 127.0.0.1:1" == producer == consumer
    assert ledger.startswith("true nowhere has no ledger.json")


def test_a_retry_continues_while_a_program_stops_and_what_is_delivered_again_is_not_skipped(programs: Path) -> None:
    program = """
        import { Runner } from "../node_modules/@headgate/client/src/runner.mjs";
        import { sleep } from "../node_modules/@headgate/client/src/waiting.mjs";
        for (const [type, then, failures] of [["STREAM", "stop", 1], ["QUEUE", "redeliver", 2]]) {
            const held = { ahead: 0, aheadBytes: 0, unpassed: [], open: new Map(), lastBegun: -1n };
            const entries = [{ held, record: { key: Buffer.from("a"), value: Buffer.from("1"), offset: 0n } }];
            let failed = 0;
            const handler = () => { if (failed++ < failures) { runner.stop(); throw new Error("not yet"); } };
            const runner = new Runner(handler, { retry: { attempts: 2, firstPauseMs: 10, then } }, type, {
                holdings: { bySegment: new Map([[0n, held]]) }, take: () => entries.shift(), wait: () => sleep(5),
                begin: () => true, mayBegin: () => true, handled: () => {}, fail: () => console.log("fails"), resumed: () => {}, progressed: () => {},
            });
            console.log(JSON.stringify(await runner.run(5000)));
        }
    """

    assert [
        '{"handled":1,"retried":1,"skipped":0,"unhandled":0}',
        "fails",
        '{"handled":0,"retried":1,"skipped":0,"unhandled":0}',
    ] == evaluate(programs, program)
