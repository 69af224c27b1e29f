"""The package of the client in JavaScript; test_conformance.py and test_javascript_consumer.py run it."""

import subprocess
from pathlib import Path
from zlib import crc32

import msgspec
import polars as pl
import pytest

from headgate.ledger import checksum
from headgate.ledger.compacted import FORMAT
from tests.support.source_folders import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


def test_the_lock_file_names_no_registry_host() -> None:
    lock = (ROOT / "clients" / "javascript" / "package-lock.json").read_text()

    assert "integrity" in lock
    assert "resolved" not in lock
    assert "://" not in lock


def compiled(programs: Path, *options: str) -> list[str]:
    """Return what TypeScript says."""
    tsc = programs.parent / "node_modules" / "typescript" / "bin" / "tsc"
    command = "node", tsc, "--noEmit", "--module", "nodenext", "--target", "es2022", *options
    return subprocess.run(command, cwd=programs, capture_output=True, check=False).stdout.decode().splitlines()


def test_the_types_describe_the_package(programs: Path) -> None:
    assert [] == compiled(programs, "--strict", "typed.mts")


def test_no_name_is_unknown_and_no_member_of_a_class_hides_another_one(programs: Path) -> None:
    sources = map(str, (programs.parent / "node_modules" / "@headgate" / "client" / "src").glob("*.mjs"))
    found = compiled(programs, "--allowJs", "--checkJs", "--skipLibCheck", *sources)

    assert any("TS2339" in each for each in found), "it has read the sources"
    assert [] == [each for each in found if "TS2300" in each or "TS2304" in each]


INTERNALS = """
    const files = "connection consumer dead_letters deliveries feed held_segment ledger membership producer producer_session resumption runner waiting";
    const modules = await Promise.all(files.split(" ").map((file) => import(`../node_modules/@headgate/client/src/${file}.mjs`)));
    const { Connection, Consumer, DeadLetters, Deliveries, Feed, HeldSegment, Ledger, Membership, Producer, ProducerSession, Resumption, Runner, sleep } = Object.assign({}, ...modules);
"""


def evaluate(programs: Path, source: str) -> list[str]:
    command = "node", "--input-type=module", "--eval", INTERNALS + source
    done = subprocess.run(command, cwd=programs, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def test_an_error_of_a_beginner_is_one_line_that_says_what_is_wrong_where_and_what_to_do(programs: Path) -> None:
    program = """
        const broker = { host: "127.0.0.1", port: 1, cluster: "local", connectTimeoutMs: 300 };
        const consumer = (more) => new Consumer({ ...broker, topic: "orders", subscription: "billing", ledger: "nowhere", ...more });
        const send = (record) => new Producer(broker).send("orders", [{ key: "a", value: "b", ...record }]);
        const attempts = [
            () => new Producer(broker).open("orders"), () => consumer().run(() => {}), () => new Ledger("nowhere", 0n, "a").check(),
            () => new Producer({ ...broker, host: "mqtt://127.0.0.1" }), () => new Producer({ ...broker, port: "mqtt" }),
            () => new Producer({ ...broker, mqtt: { protocol: "mqtt", ca: "" } }),
            () => new Producer({ ...broker, incarnation: 3 }), () => consumer({ onGrant: () => {} }),
            () => consumer({ behind: "continue" }), () => consumer().run(() => {}, { concurency: 2 }),
            () => consumer({ topic: undefined }), () => consumer({ start: "first" }), () => consumer({ ledger: "s3://streams" }),
            () => consumer({ onGranted: "print" }), () => consumer().run(), () => consumer()[Symbol.asyncIterator]().next(),
            () => consumer().acknowledge({}), () => consumer().flush(), () => send({ key: 7 }),
            () => send({ timestampMs: new Date() }), () => send({ headers: {} }), () => new Producer(broker).send("orders", {}),
            ...[0, ""].map((sourcePosition) => () => new Producer(broker).send("orders", [], { sourcePosition })),
            () => new Producer(broker).send("orders", Array(2501).fill({ key: "a", value: "b", headers: [{ name: "c", value: "d" }] })),
        ];
        for (const attempt of attempts) await (async () => attempt())().catch(({ message }) => console.log(message));
        consumer({ ledger: "file:///var/lib/headgate" });
        process.exit();
    """
    away = "broker 127.0.0.1:1: connect ECONNREFUSED 127.0.0.1:1; check host and port, and whether the broker runs"
    folder = "the folder of the cluster's ledger, or a store with read and list for one in a bucket: README.md has one"
    not_open = "this consumer is not open: await open() before, or call run"

    assert [
        *[f"not connected within 0.3 s: {away}"] * 2,
        "nowhere has no ledger.json: the option ledger is the folder, or the store, of the cluster's ledger",
        "host=mqtt://127.0.0.1: use a name or an address without a scheme, such as 127.0.0.1",
        "port=mqtt: use the broker's port, such as 1883",
        "mqtt.protocol=mqtt: use mqtts, because ca, cert, key and pfx are for TLS",
        "incarnation: only for a producer with a name",
        "new Consumer: there is no option onGrant",
        "behind=continue: not for type STREAM, which passes over gaps",
        "run: there is no option concurency",
        "topic=undefined: use a text",
        "start=first: use earliest or latest",
        f"ledger=s3://streams: use {folder}",
        "onGranted=print: use a function",
        "run: handler=undefined: use a function",
        f"the iteration: {not_open}",
        "acknowledge: record=Object: use a record that this consumer has delivered",
        f"flush: {not_open}",
        "key: give a Uint8Array or a string, not number",
        "timestampMs=Date: use whole ms since 1970, such as Date.now()",
        "headers=Object: use an array",
        "send: records=Object: use an array",
        "sourcePosition: give a Uint8Array or a string, not number",
        "send: await sourcePosition(topic) before the first batch with a position",
        "a batch of 5002 records and headers is above the limit of 5000: send it in parts",
    ] == evaluate(programs, program)


RUNNER = """
    let holds = true;
    const held = { ahead: 0, aheadBytes: 0, unpassed: [], open: new Map(), lastBegun: -1n };
    const record = (offset, key) => ({ held, record: { key: Buffer.from(key), value: Buffer.from("1"), offset } });
    const start = (entries, handler, type, options) => {
        return new Runner(handler, options, type, {
            holdings: { size: 1 }, take: () => entries.shift(), wait: () => sleep(5), begin: () => true,
            mayBegin: () => holds, handled: (_, { offset }) => console.log(`to ${offset}`), fail: () => console.log("fails"),
            park: async ({ offset }) => console.log(`parks ${offset}`), resumed: () => {}, progressed: () => {}, late: () => {},
        });
    };
"""


def test_a_retry_continues_while_a_program_stops_and_what_is_delivered_again_is_not_skipped(programs: Path) -> None:
    program = """
        for (const [type, then, failures] of [["STREAM", "stop", 1], ["QUEUE", "redeliver", 2]]) {
            let failed = 0;
            const handler = () => { if (failed++ < failures) { runner.stop(); throw new Error("not yet"); } };
            const runner = start([record(0n, "a")], handler, type, { retry: { attempts: 2, firstPauseMs: 10, then } });
            console.log(JSON.stringify(await runner.run(5000)));
        }
    """

    assert [
        "to 0",
        '{"handled":1,"retried":1,"skipped":0,"parked":0,"redelivered":0,"unhandled":0}',
        "fails",
        "to 0",
        '{"handled":0,"retried":1,"skipped":0,"parked":0,"redelivered":1,"unhandled":0}',
    ] == evaluate(programs, RUNNER + program)


def test_a_retry_holds_back_only_its_key_waits_for_the_lease_and_ends_with_its_segment(programs: Path) -> None:
    program = """
        const calls = [];
        const handler = ({ offset }) => {
            calls.push(Number(offset));
            if (offset === 1n) holds = false; // cut off, while 0 waits for its retry
            if (offset === 0n || offset === 3n) throw new Error("not yet");
        };
        const onFailed = ({ offset }, { message }, next) => console.log(`${offset} ${message}: ${next}`);
        const entries = [record(0n, "a"), record(1n, "b"), record(2n, "a")];
        const runner = start(entries, handler, "STREAM", { retry: { attempts: 3, firstPauseMs: 20, then: "park" }, onFailed });
        const report = runner.run(5000);
        await sleep(300);
        console.log(String(calls));
        holds = true;
        while (calls.length < 4) await sleep(5);
        await sleep(5);
        entries.push(record(3n, "c"));
        while (calls.length < 5) await sleep(5);
        held.dropped = true;
        runner.stop();
        const its = await report;
        console.log(String(calls), JSON.stringify(its));
    """

    assert [
        "0 not yet: retry",
        "0,1",
        "0 not yet: retry",
        "0 not yet: park",
        "parks 0",
        "parks 2",
        "to 2",
        "3 not yet: retry",
        '0,1,0,0,3 {"handled":1,"retried":3,"skipped":0,"parked":2,"redelivered":0,"unhandled":0}',
    ] == evaluate(programs, RUNNER + program)


def test_batches_start_when_they_are_full_or_due_and_are_tried_again_as_a_whole(programs: Path) -> None:
    program = """
        const calls = [];
        const handler = (records) => { if (calls.push(records.map(({ offset }) => offset).join(" ")) === 1) throw new Error("not yet"); };
        const entries = [record(0n, "a"), record(1n, "a"), record(2n, "b"), record(3n, "a")];
        const [retry, batch] = [{ attempts: 2, firstPauseMs: 200 }, { maxRecords: 3, maxWaitMs: 50 }];
        const report = start(entries, handler, "STREAM", { retry, batch }).run(5000, () => calls.length === 3);
        console.log(JSON.stringify(await report), calls.join());
        try { start([], handler, "STREAM", { lookAhead: { maxBytes: 0 } }); } catch ({ message }) { console.log(message); }
    """

    report = '{"handled":4,"retried":3,"skipped":0,"parked":0,"redelivered":0,"unhandled":0}'
    assert [
        *(f"to {offset}" for offset in range(4)),
        f"{report} 0 1 2,0 1 2,3",
        "run: lookAhead.maxBytes=0 is below 1",
    ] == evaluate(programs, RUNNER + program)


def test_a_batch_without_an_answer_in_time_is_unknown_and_one_that_was_not_sent_is_not_stored(programs: Path) -> None:
    program = """
        const identity = { type: "producer_identity", producer_id: 1n, producer_epoch: 0n };
        const send = ({ type }, reply) => type === "open_producer" && setTimeout(() => reply({ leader_epoch: 1n, body: identity }));
        const session = new ProducerSession({ connected: true, window: 8n, epoch: 1n, send, forget() {}, whoLeads() {} }, {}, () => {}, () => {});
        const batches = ["sent", "queued"].map((type) => session.offer({ type }, performance.now() + 300));
        for (const { reason } of await Promise.allSettled(batches)) console.log(reason.name);
        session.end(new Error("over"));
    """

    assert ["DeliveryUnknownError", "DeliveryFailedError"] == evaluate(programs, program)


def test_what_is_behind_a_failed_batch_with_a_source_position_fails_until_the_position_is_asked_for(programs: Path):
    program = """
        const session = new ProducerSession({ connected: false, forget() {} }, {}, () => {}, () => {});
        const offer = (topic, ms) => session.offer({ topic, source_position: "1" }, performance.now() + ms).catch(({ message }) => message);
        const [first, behind, other] = [offer("a", 1), offer("a", 5000), offer("b", 5000)];
        console.log([await first, await behind, await offer("a", 5000)].join("\\n"));
        session.closeGap("a");
        const again = offer("a", 5000);
        session.end(new Error("over"));
        console.log([await other, await again]);
    """

    gap = "an earlier batch with a source position is not stored: await sourcePosition(topic), and continue there"
    assert ["it was not sent in time", gap, gap, "[ 'over', 'over' ]"] == evaluate(programs, program)


def test_each_batch_with_a_source_position_states_the_one_that_it_follows(programs: Path) -> None:
    program = """
        const identity = { type: "producer_identity", producer_id: 1n, producer_epoch: 0n };
        const answer = ({ type, topic, previous_position: before }) => (type === "open_producer" ? identity : { type: console.log(topic, before) ?? "committed" });
        const send = (body, reply) => setTimeout(() => reply({ leader_epoch: 1n, body: answer(body) }));
        const session = new ProducerSession({ connected: true, window: 8n, epoch: 1n, send, forget() {}, whoLeads() {} }, {}, () => {}, () => {});
        const offer = (topic, source_position) => session.offer({ type: "produce", topic, source_position }, performance.now() + 5000);
        session.continueAt("a", "3");
        session.continueAt("b", null);
        for (const [topic, position] of [["a", "4"], ["b", "1"], ["a", undefined], ["a", "5"], ["b", "2"]]) await offer(topic, position);
        session.continueAt("a", "2");
        await offer("a", "3");
        session.end(new Error("over"));
    """

    assert ["a 3", "b null", "a undefined", "a 4", "b 1", "a 2"] == evaluate(programs, program)


def test_a_store_that_fails_is_read_again_and_a_machine_that_slept_delivers_nothing(programs: Path) -> None:
    program = """
        let reads = 0;
        const read = () => { if (!reads++) throw new Error("503"); return null; };
        const [connection, membership] = [{ changed: { wait: () => console.log("waits") || feed.end() } }, { provenHead: 0n, head: 0n }];
        const feed = new Feed({ connection, membership, ledger: new Ledger({ read, list: () => [] }, 0n, "a") });
        process.on("warning", ({ message }) => console.log(message));
        await feed.read({ isReadable: true, chunk: 1n, next: 0n });
        const reply = { subscription_id: 1n, topic_id: 1n, grants: [], heartbeat_interval_seconds: 1n, lease_seconds: 30n };
        const holdings = { registrationRequested() {}, registered() {}, ownPositions: [] };
        const others = { shard: { ask: async () => reply }, history: { confirmed() {} }, connection: { changed: { notify() {} } } };
        const slept = new Membership({ ...others, holdings, names: {}, options: {} });
        await slept.register();
        const now = Date.now();
        console.log(slept.mayDeliver, (Date.now = () => now + 60_000) && slept.mayDeliver);
        others.shard.ask = async () => (Date.now = () => now + 120_000) && reply; // it sleeps before it has the reply
        console.log((await slept.register()) ?? slept.mayDeliver);
    """

    assert ["the ledger cannot be read: 503", "waits", "true false", "false"] == evaluate(programs, program)


def test_records_that_are_read_one_by_one_read_each_chunk_once_for_each_segment(programs: Path) -> None:
    program = """
        let reads = 0;
        const rows = (offset) => [{ topic_id: 1n, segment: offset % 2n, fact: "record", offset }];
        const ledger = { chunk: async (number) => ++reads && { rows: rows(number) }, compacted: async () => null };
        const [feed, places] = [new Feed({ ledger, membership: { head: 60n, topicId: 1n } }), {}];
        for (let n = 1n; n <= 60n; n++) await feed.readOne(n % 2n, n, 1n, places);
        console.log(reads);
    """

    assert ["60"] == evaluate(programs, program)


def test_a_resumed_key_is_held_once_its_records_are_delivered_and_unparked_once_nothing_of_it_is_parked(programs: Path):
    """Records 1 and 3 of four are lost. What the leader said before the key was parked again begins nothing."""
    program = """
        const key = Buffer.from("k");
        const held = new HeldSegment({ segment: 0n, generation: 1n, start_offset: 5n, start_chunk: 1n, parked: [key] });
        const state = held.parkedKey(key);
        const put = (_, row, { parkedNumber }) => console.log(`record ${parkedNumber}`, state.takes(parkedNumber));
        const feed = { reads: () => true, put, space: { notify() {} } };
        const ask = async (type, { last }) => console.log(type, last);
        const resumption = new Resumption({ holdings: { of: () => held, all: [held] }, feed, membership: { ask }, connection: {} });
        const take = async (topic, of, first) => ({ found: [[2n, {}], [4n, {}]].filter(([number]) => number >= first), newest: 4n });
        resumption.records = { take };
        const hear = async (what, number, stored, last = stored, askedAt = performance.now()) => {
            await resumption.heard({ resuming: [[0n, 1n, key, 7n, "dead", number, last, stored]] }, askedAt);
            console.log(what, state.isResuming, state.isHeld, state.problem);
        };
        await hear("delivered", 0n, 4n, 5n);
        state.storedAt -= 60_000;
        await hear("nothing new for a minute", 4n, 4n, 5n);
        await hear("lost", 4n, 5n);
        await hear("found", 4n, 4n);
        held.parked.set(6n, key);
        await hear("a record is parked", 4n, 4n);
        held.parked.clear();
        await hear("nothing is parked", 4n, 4n);
        for (const [askedAt, parking] of [[0, []], [performance.now(), ["k"]], [performance.now(), []]]) {
            held.parking = new Set(parking);
            await resumption.heard({ resuming: [[0n, 1n, key, 8n, "dead", 4n, 5n, 4n]] }, askedAt);
            console.log("parked by another holder", held.parkedKeys.size);
        }
        held.parkedKeys.set("k", state);
        await hear("earlier news", 0n, 4n, 4n, state.parkedAt = performance.now());
        state.isResuming = state.isHeld = true;
        await resumption.heard({}, performance.now());
        console.log("named no more", state.isResuming, state.isHeld);
    """

    problem = "1 parked records are not in topic 'dead': if it has lost them, drop the key"
    assert [
        "record 2 true",
        "record 4 true",
        "delivered true true null",
        "nothing new for a minute true false null",
        f"lost true false {problem}",
        "found true true null",
        "a record is parked true true null",
        "unpark_key 4n",
        "nothing is parked false false null",
        *[f"parked by another holder {keys}" for keys in (0, 0, 1)],
        "earlier news false false null",
        "named no more false false",
    ] == evaluate(programs, program)


LEADER = """
    const broker = { host: "127.0.0.1", port: 1, cluster: "local" };
    const identity = { type: "producer_identity", producer_id: 1n, producer_epoch: 0n };
    const shard = { number: 0n, connected: true, window: 8n, epoch: 1n, newestEpoch: 1n, forget() {}, close() {}, whoLeads() {} };
    Connection.prototype.shardOf = async function (topic) { this.cluster = { ledger_id: "a" }; return shard; };
    shard.send = (body, reply) => setTimeout(() => reply({ leader_epoch: 1n, body: body.type === "open_producer" ? identity : stored(body) }));
    const stored = ({ records }) => console.log(String(records.map(([, value]) => value))) ?? { type: "committed" };
"""


def test_batches_keep_the_order_of_their_sends_also_if_a_later_one_finds_its_leader_first(programs: Path) -> None:
    program = """
        const [found, ms] = [Connection.prototype.shardOf, [50, 0, 20]];
        Connection.prototype.shardOf = async (topic) => { await sleep(ms.shift()); return found.call({}, topic); };
        const producer = new Producer(broker);
        const sent = await Promise.all(["a", "b", "c"].map((value) => producer.send("orders", [{ key: "k", value }])));
        await Promise.all(sent.map(({ stored }) => stored));
        await producer.close();
    """

    assert ["a", "b", "c"] == evaluate(programs, LEADER + program)


def test_what_a_run_gives_back_after_a_failure_in_another_segment_is_not_acknowledged(programs: Path) -> None:
    program = """
        const of = (segment) => Array.from({ length: 4 }, (_, at) => ({ fact: "record", topic_id: 1n, segment, offset: BigInt(at), key: Buffer.from(`${segment}`), value: Buffer.from("") }));
        const grants = [0n, 1n].map((segment) => ({ segment, generation: 1n, start_offset: 0n, start_chunk: 1n }));
        const registered = { subscription_id: 1n, topic_id: 1n, grants, heartbeat_interval_seconds: 5n, lease_seconds: 30n, head: 1n, term_id: 7n, epoch: 1n };
        shard.ask = async ({ type, acknowledgements = [] }) => {
            for (const [segment, , , end] of acknowledgements) console.log(`${segment} to ${end}`);
            return type === "register" ? registered : {};
        };
        Object.assign(Ledger.prototype, { check() {}, chunk: async (number) => (number === 1n ? { term_id: 7n, rows: [...of(0n), ...of(1n)] } : null), compacted: async () => null });
        const consumer = new Consumer({ ...broker, topic: "orders", subscription: "billing", ledger: "nowhere" });
        const handler = ({ segment }) => sleep(segment ? 100 : 300).then(() => { if (segment) throw new Error("bad"); });
        await consumer.run(handler, { concurrency: 2, retry: { attempts: 1 } }).catch(({ message }) => console.log(message));
    """

    assert ["0 to 1", "segment 1, offset 0: bad"] == evaluate(programs, LEADER + program)


def test_records_that_are_due_at_once_are_read_again_one_by_one(programs: Path) -> None:
    program = """
        let [reading, most, ended] = [0, 0, false];
        const readOne = async () => { most = Math.max(most, ++reading); await sleep(1); reading--; return {}; };
        const put = (_, row, { deliveryCount }) => (ended = deliveryCount === 100);
        const parts = { acknowledger: {}, holdings: { all: [] }, feed: { readOne, put }, connection: { guard: (work) => work() } };
        const deliveries = new Deliveries(parts);
        deliveries.schedule({ isReadable: true }, Array.from({ length: 100 }, (_, at) => [BigInt(at), BigInt(at + 1), 0n, 1n]));
        await deliveries.run(() => ended);
        console.log(most);
    """

    assert ["1"] == evaluate(programs, program)


def test_dead_letters_with_many_headers_are_stored_in_parts_and_parked_ones_have_a_keeper(programs: Path) -> None:
    program = """
        const header = (at) => ({ name: `h${at}`, value: Buffer.from("1") });
        const row = { key: Buffer.from("k"), value: Buffer.from("v"), timestamp_ms: 1n, headers: Array.from({ length: 64 }, (_, at) => header(at)) };
        const letter = (at) => ({ topic: "dead", number: BigInt(at + 1), died_at_ms: 1n, segment: 0n, offset: BigInt(at), start_chunk: 1n, deliveries: 1n, reason: "", parked_number: BigInt(at + 1) });
        shard.ask = async ({ type, topic, subscription }) => (type === "create_subscription" ? console.log(topic, subscription) : { topic_id: 1n });
        const membership = { subscriptionId: 3n, topicId: 1n, ask: async (type, { stored }) => console.log(type, stored.length), hurry() {} };
        const [connection, names] = [new Connection(broker, { onFailure() {} }), { topic: "orders", subscription: "billing" }];
        await connection.shardOf("orders");
        const sender = new DeadLetters({ connection, shard, membership, names, broker, feed: { readOne: async () => row } });
        await sender.heard({ dead_letters: Array.from({ length: 100 }, (_, at) => letter(at)), sender_since_ms: 1n, sender_secret: "s" });
        console.log(sender.problem);
        process.exit();
    """

    batch = ",".join("v" * 50)
    assert ["dead dead-letters-0-3", batch, batch, "confirm_dead_letters 100", "undefined"] == evaluate(
        programs, LEADER + program
    )


def test_a_compacted_object_may_have_more_records_than_a_call_has_arguments(programs: Path, tmp_path: Path) -> None:
    count = 200_000
    columns = {"offset": range(count), "timestamp_ms": range(count), "key": [b"k"] * count, "value": [b"v"] * count}
    pl.DataFrame(columns, schema_overrides={"offset": pl.Int64, "timestamp_ms": pl.Int64}).write_parquet(
        tmp_path / "object.parquet"
    )
    item = {
        "path": "object.parquet",
        "topic_id": 1,
        "segment": 0,
        "checksum": crc32((tmp_path / "object.parquet").read_bytes()),
    }
    manifest = {"format": FORMAT, "ledger_id": "a", "objects": [item]}
    (tmp_path / "manifests" / "shard=0000").mkdir(parents=True)
    sealed = checksum.seal_json(msgspec.json.encode(manifest))
    (tmp_path / "manifests" / "shard=0000" / f"{1:012}-{1:012}.json").write_bytes(sealed)
    program = f"""
        const {{ rows }} = await new Ledger("{tmp_path}", 0n, "a").compacted(1n, () => true);
        console.log(rows.length, rows.at(-1).offset);
    """

    assert [f"{count} {count - 1}n"] == evaluate(programs, program)


def test_nothing_more_is_read_of_a_segment_that_has_too_much_that_is_not_stored(programs: Path) -> None:
    program = """
        const held = () => new HeldSegment({ segment: 0n, generation: 1n, start_offset: 0n, start_chunk: 1n });
        const of = (name, count) => { const each = held(); for (let at = 0; at < count; at++) each[name].set(at, Buffer.from("k")); return each; };
        const all = [held(), of("pending", 99_999), of("pending", 100_000), of("parked", 9999), of("parked", 10_000)];
        const feed = new Feed({ connection: { changed: { notify() {} } } });
        feed.space.wait = async () => feed.end();
        for (const each of all) { await feed.put(each, { offset: 0n, key: Buffer.from("k") }); console.log(each.queued); }
    """

    assert ["1", "1", "0", "0", "0"] == evaluate(programs, program)


def test_a_batch_that_is_unknown_is_not_sent_again_once_an_opening_has_decided_that_it_is_not_stored(programs: Path):
    program = """
        const identity = { type: "producer_identity", producer_id: 1n, producer_epoch: 0n, previous_next_sequence: 0n };
        const refused = { type: "rejected", verdict: "out_of_order", reason: "" };
        const answer = ({ type, topic }) => type === "open_producer" ? identity : { type: console.log(topic) ?? "committed" };
        const send = (body, reply) => setTimeout(() => reply({ leader_epoch: 1n, body: opened++ < 2 && body.topic ? refused : answer(body) }), body.topic ? 150 : 1);
        let opened = 0;
        const session = new ProducerSession({ connected: true, window: 8n, epoch: 1n, send, forget() {}, whoLeads() {} }, {}, () => {}, () => {});
        const offer = (topic, ms) => session.offer({ type: "produce", topic }, performance.now() + ms).catch(({ name }) => name);
        const [first, second] = [offer("first", 50), offer("second", 5000)];
        console.log(await first);
        await second;
        session.end(new Error("over"));
    """

    assert ["DeliveryUnknownError", "second"] == evaluate(programs, program)
