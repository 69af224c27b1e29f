// Runs one of these programs, which use the inside of the client, by its name, and checks what it prints.
import assert from "node:assert";
import { format } from "node:util";
import { decode, encode } from "../node_modules/@headgate/client/src/encoding.mjs";

const files = "connection consumer dead_letters deliveries feed held_segment ledger membership parked_records producer producer_session resumption runner schedule waiting";
const modules = await Promise.all(files.split(" ").map((file) => import(`../node_modules/@headgate/client/src/${file}.mjs`)));
const { Connection, Consumer, DeadLetters, Deliveries, Feed, HeldSegment, Ledger, Membership, ParkedRecords, Producer, ProducerSession, Resumption, Runner, Schedule, sleep } = Object.assign({}, ...modules);
const [[wanted, folder], printed] = [process.argv.slice(2), []];
process.exitCode = 1; // also if no program has this name, or it never ends
function prints(name, expected, program) {
  if (name !== wanted) return;
  console.log = (...values) => void printed.push(...format(...values).split("\n"));
  program().then(() => process.exit(assert.deepStrictEqual(printed, expected) ?? 0));
}

const broker = { host: "127.0.0.1", port: 1, cluster: "local", connectTimeoutMs: 300 };
const identity = { type: "producer_identity", producer_id: 1n, producer_epoch: 0n, previous_next_sequence: 0n };
/** Return the session of a producer. `answer` returns the reply to a batch, and undefined for none, after `ms`. */
function sessionOf(answer, ms = 0) {
  const reply = (body, onReply) => (body ? setTimeout(() => onReply({ leader_epoch: 1n, body }), ms) : null);
  const send = (body, onReply) => reply(body.type === "open_producer" ? identity : answer(body), onReply);
  return new ProducerSession({ connected: true, window: 8n, epoch: 1n, send, forget() {}, whoLeads() {} }, {}, () => {}, () => {});
}
/** Return a shard that every client finds, whose leader answers with what `ask` returns; it prints the values of each batch. */
function shardThat(ask) {
  const stored = ({ records }) => console.log(String(records.map(([, value]) => value))) ?? { type: "committed" };
  const send = (body, reply) => setTimeout(() => reply({ leader_epoch: 1n, body: body.type === "open_producer" ? identity : stored(body) }));
  const shard = { number: 0n, connected: true, window: 8n, epoch: 1n, newestEpoch: 1n, ask, send, forget() {}, close() {}, whoLeads() {} };
  Connection.prototype.shardOf = async function () { this.cluster = { ledger_id: "a" }; return shard; };
  return shard;
}
const [lease, held] = [{ holds: true }, { ahead: 0, aheadBytes: 0, unpassed: [], open: new Map(), lastBegun: -1n }];
const record = (offset, key, ...headers) => ({ held, record: { key: Buffer.from(key), value: Buffer.from("1"), offset, headers } });
/** Return a run of a handler, which has `entries`, and `lease`. */
const start = (entries, handler, type, options) =>
  new Runner(handler, options, type, {
    holdings: { size: 1 }, take: () => entries.shift(), wait: () => sleep(5), begin: () => true,
    mayBegin: () => lease.holds, handled: (_, { offset }) => console.log(`to ${offset}`), fail: () => console.log("fails"),
    park: async ({ offset }) => console.log(`parks ${offset}`), resumed: () => {}, progressed: () => {}, late: () => {},
  });

prints("an error of a beginner is one line that says what is wrong where and what to do", [
  "not connected within 0.3 s: broker 127.0.0.1:1: connect ECONNREFUSED 127.0.0.1:1; check host and port, and whether the broker runs",
  "not connected within 0.3 s: broker 127.0.0.1:1: connect ECONNREFUSED 127.0.0.1:1; check host and port, and whether the broker runs",
  "nowhere has no ledger.json: the option ledger is the folder, or the store, of the cluster's ledger",
  "host=mqtt://127.0.0.1: use a name or an address without a scheme, such as 127.0.0.1", "port=mqtt: use the broker's port, such as 1883",
  "mqtt.protocol=mqtt: use mqtts, because ca, cert, key and pfx are for TLS", "incarnation: only for a producer with a name",
  "new Consumer: there is no option onGrant", "behind=continue: not for type STREAM, which passes over gaps", "run: there is no option concurency",
  "topic=undefined: use a text", "start=first: use earliest or latest",
  "ledger=s3://streams: use the folder of the cluster's ledger, or a store with read and list for one in a bucket: README.md has one",
  "onGranted=print: use a function", "run: handler=undefined: use a function",
  "the iteration: this consumer is not open: await open() before, or call run",
  "acknowledge: record=Object: use a record that this consumer has delivered", "flush: this consumer is not open: await open() before, or call run",
  "key: give a Uint8Array or a string, not number", "timestampMs=Date: use whole ms since 1970, such as Date.now()", "incarnation=1.5: use whole ms since 1970, such as Date.now()", "headers=Object: use an array", "send: record=null: use an object with options",
  "send: records=Object: use an array", "sourcePosition: give a Uint8Array or a string, not number",
  "value: give a Uint8Array or a string, not one with half of a character", "deliveryTimeoutMs=5000: use a number of ms, 0 or more",
  "connectTimeoutMs=NaN: use a number of ms, 0 or more", "clientId=till/1: use a text without /, + and #", "run: batch=maxRecord: use maxRecords or maxWaitMs",
  "run: lookAhead=3: use an object with options", "run: concurrency=0: use 1 or more", "run: stopMs=soon: use a number of ms, 0 or more",
  "send: await sourcePosition(topic) before the first batch with a position",
  "a batch of 5002 records and headers is above the limit of 5000: send it in parts", "open: this consumer was opened before: create another one",
], async () => {
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
    () => send({ timestampMs: new Date() }), () => new Producer({ ...broker, name: "till", incarnation: 1.5 }), () => send({ headers: {} }), () => new Producer(broker).send("orders", [null]), () => new Producer(broker).send("orders", {}),
    () => new Producer(broker).send("orders", [], { sourcePosition: 0 }), () => send({ value: "\ud83d" }),
    ...[{ deliveryTimeoutMs: "5000" }, { connectTimeoutMs: NaN }, { clientId: "till/1" }].map((more) => () => new Producer({ ...broker, ...more })),
    ...[{ batch: { maxRecord: 9 } }, { lookAhead: 3 }, { concurrency: 0 }, { stopMs: "soon" }].map((options) => () => consumer().run(() => {}, options)),
    () => new Producer(broker).send("orders", [], { sourcePosition: "" }),
    () => new Producer(broker).send("orders", Array(2501).fill({ key: "a", value: "b", headers: [{ name: "c", value: "d" }] })),
    async (again = consumer()) => (await again.open().catch(() => {}), again.open()),
  ];
  for (const attempt of attempts) await (async () => attempt())().catch(({ message }) => console.log(message));
  consumer({ ledger: "file:///var/lib/headgate" });
});

prints("a retry continues while a program stops and what is delivered again is not skipped", ["to 0", '{"handled":1,"retried":1,"skipped":0,"parked":0,"redelivered":0,"unhandled":0}', "fails", '{"handled":0,"retried":1,"skipped":0,"parked":0,"redelivered":1,"unhandled":0}'], async () => {
  for (const [type, then, failures] of [["STREAM", "stop", 1], ["QUEUE", "redeliver", 2]]) {
    let failed = 0;
    const handler = () => { if (failed++ < failures) { runner.stop(); throw new Error("not yet"); } };
    const runner = start([record(0n, "a")], handler, type, { retry: { attempts: 2, firstPauseMs: 10, then } });
    console.log(JSON.stringify(await runner.run(5000)));
  }
});

prints("a retry holds back only its key waits for the lease and ends with its segment", [
  "0 not yet: retry", "0,1", "0 not yet: retry", "0 not yet: park", "parks 0", "parks 2", "to 2", "3 not yet: retry",
  '0,1,0,0,3 {"handled":1,"retried":3,"skipped":0,"parked":2,"redelivered":0,"unhandled":0}',
], async () => {
  const calls = [];
  const handler = ({ offset }) => {
    calls.push(Number(offset));
    if (offset === 1n) lease.holds = false; // cut off, while 0 waits for its retry
    if (offset === 0n || offset === 3n) throw new Error("not yet");
  };
  const onFailed = ({ offset }, { message }, next) => console.log(`${offset} ${message}: ${next}`);
  const entries = [record(0n, "a"), record(1n, "b"), record(2n, "a")];
  const runner = start(entries, handler, "STREAM", { retry: { attempts: 3, firstPauseMs: 20, then: "park" }, onFailed });
  const report = runner.run(5000);
  await sleep(300);
  console.log(String(calls));
  lease.holds = true;
  while (calls.length < 4) await sleep(5);
  await sleep(5);
  entries.push(record(3n, "c"));
  while (calls.length < 5) await sleep(5);
  held.dropped = true;
  runner.stop();
  const its = await report;
  console.log(String(calls), JSON.stringify(its));
});

prints("batches start when they are full or due and are tried again as a whole", [
  "to 0", "to 1", "to 2", "to 3", '{"handled":4,"retried":3,"skipped":0,"parked":0,"redelivered":0,"unhandled":0} 0 1 2,0 1 2,3',
  "run: lookAhead.maxBytes=0: use 1 or more", "5",
], async () => {
  const calls = [];
  const handler = (records) => { if (calls.push(records.map(({ offset }) => offset).join(" ")) === 1) throw new Error("not yet"); };
  const entries = [record(0n, "a"), record(1n, "a"), record(2n, "b"), record(3n, "a")];
  const [retry, batch] = [{ attempts: 2, firstPauseMs: 200 }, { maxRecords: 3, maxWaitMs: 50 }];
  const report = start(entries, handler, "STREAM", { retry, batch }).run(5000, () => calls.length === 3);
  console.log(JSON.stringify(await report), calls.join());
  try { start([], handler, "STREAM", { lookAhead: { maxBytes: 0 } }); } catch ({ message }) { console.log(message); }
  new Schedule({ size: 1 }, "STREAM").add(record(0n, "a", { name: "n", value: Buffer.from("12") }));
  console.log(held.aheadBytes);
});

prints("a batch without an answer in time is unknown and one that was not sent is not stored although another is before it", ["DeliveryUnknownError", "DeliveryFailedError", "in time"], async () => {
  const session = sessionOf(() => {});
  const [sent, later, queued] = [300, 9000, 300].map((ms, type) => session.offer({ type }, performance.now() + ms).catch(({ name }) => name));
  console.log([await sent, await queued, await Promise.race([later, "in time"])].join("\n"));
  session.end(new Error("over"));
});

const gap = "an earlier batch with a source position is not stored: await sourcePosition(topic), and continue there";
prints("what is behind a failed batch with a source position fails until the position is asked for", ["it was not sent in time", gap, gap, "[ 'over', 'over' ]"], async () => {
  const session = new ProducerSession({ connected: false, forget() {} }, {}, () => {}, () => {});
  const offer = (topic, ms) => session.offer({ topic, source_position: "1" }, performance.now() + ms).catch(({ message }) => message);
  const [first, behind, other] = [offer("a", 1), offer("a", 5000), offer("b", 5000)];
  console.log([await first, await behind, await offer("a", 5000)].join("\n"));
  session.closeGap("a");
  const again = offer("a", 5000);
  session.end(new Error("over"));
  console.log([await other, await again]);
});

prints("each batch with a source position states the one that it follows", ["a 3", "b null", "a undefined", "a 4", "b 1", "a 2"], async () => {
  const session = sessionOf(({ topic, previous_position: before }) => ({ type: console.log(topic, before) ?? "committed" }));
  const offer = (topic, source_position) => session.offer({ type: "produce", topic, source_position }, performance.now() + 5000);
  session.continueAt("a", "3");
  session.continueAt("b", null);
  for (const [topic, position] of [["a", "4"], ["b", "1"], ["a", undefined], ["a", "5"], ["b", "2"]]) await offer(topic, position);
  session.continueAt("a", "2");
  await offer("a", "3");
  session.end(new Error("over"));
});

prints("a store that fails is read again and a machine that slept delivers nothing", ["the ledger cannot be read: 503", "waits", "true false", "false"], async () => {
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
});

prints("a segment that was read to its end a moment ago lags by that moment and not by the age of its last record", ["0", "true", "true"], async () => {
  const membership = { provenHead: 0n, head: 4n };
  const feed = new Feed({ connection: { changed: { wait: () => feed.end() } }, membership, ledger: { chunk: () => null, compacted: () => null } });
  const held = new HeldSegment({ segment: 0n, generation: 1n, start_offset: 0n, start_chunk: 5n });
  feed.newestMs = BigInt(Date.now() - 3_600_000);
  await feed.read(held);
  console.log(feed.lagMs([held]));
  membership.head = 5n; // of another topic, as nearly always in a busy shard
  console.log(feed.lagMs([held]) < 60_000);
  held.queued = 1;
  console.log(feed.lagMs([held]) >= 3_600_000);
});

prints("records that are read one by one read each chunk once for each segment", ["60"], async () => {
  let reads = 0;
  const rows = (offset) => [{ topic_id: 1n, segment: offset % 2n, fact: "record", offset }];
  const ledger = { chunk: async (number) => ++reads && { rows: rows(number) }, compacted: async () => null };
  const [feed, places] = [new Feed({ ledger, membership: { head: 60n, topicId: 1n } }), {}];
  for (let n = 1n; n <= 60n; n++) await feed.readOne(n % 2n, n, 1n, places);
  console.log(reads);
});

prints("a resumed key is held once its records are delivered and unparked once nothing of it is parked", [
  "record 2 true", "record 4 true", "delivered true true null", "nothing new for a minute true false null",
  "lost true false 1 parked records are not in topic 'dead': if it has lost them, drop the key", "found true true null",
  "a record is parked true true null", "unpark_key 4n", "nothing is parked false false null", "parked by another holder 0",
  "parked by another holder 0", "parked by another holder 1", "earlier news false false null", "named no more false false",
], async () => {
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
});

prints("a resumption that ended while its records wait for space leaves them to the next one, without dropped ones", [
  "waits 1", "waits 1", "waits 3",
], async () => {
  const [key, waiting] = [Buffer.from("k"), []];
  const held = new HeldSegment({ segment: 0n, generation: 1n, start_offset: 5n, start_chunk: 1n, parked: [key] });
  const put = (_, row, { parkedNumber }) => new Promise((resolve) => (console.log(`waits ${parkedNumber}`), waiting.push(resolve)));
  const feed = { reads: () => true, put, space: { notify() {} } };
  const resumption = new Resumption({ holdings: { of: () => held, all: [held] }, feed, connection: {} });
  const take = async (topic, of, first) => ({ found: [1n, 2n, 3n].filter((number) => number >= first).map((number) => [number, {}]), newest: 3n });
  resumption.records = { take };
  const hear = (...numbers) => void resumption.heard({ resuming: numbers.map((number) => [0n, 1n, key, 7n, "dead", number, 3n, 3n]) }, performance.now());
  for (const numbers of [[0n], [], [0n], "put", [2n], "put"]) {
    if (numbers === "put") waiting.shift()();
    else hear(...numbers);
    await sleep(10);
  }
});

prints("a later close ends with the first one and a consumer may be closed while it opens", ["not opened: the client is closed", "closed", "closed"], async () => {
  const opening = new Consumer({ ...broker, topic: "orders", subscription: "billing", ledger: "nowhere", connectTimeoutMs: 60_000 });
  const opened = opening.open().catch(({ message }) => console.log(`not opened: ${message}`));
  await opening.close();
  await opened;
  const consumer = holder();
  await consumer.open();
  for (const client of [consumer, new Producer(broker)]) {
    await Promise.all([client.close(), client.close()]);
    await client.close().then(() => console.log("closed"));
  }
});

prints("batches keep the order of their sends also if a later one finds its leader first", ["a", "b", "c"], async () => {
  const [shard, ms] = [shardThat(), [50, 0, 20]];
  Connection.prototype.shardOf = () => sleep(ms.shift()).then(() => shard);
  const producer = new Producer(broker);
  const sent = await Promise.all(["a", "b", "c"].map((value) => producer.send("orders", [{ key: "k", value }])));
  await Promise.all(sent.map(({ stored }) => stored));
  await producer.close();
});

/** Return a consumer that holds two segments with four records each; it prints what is acknowledged. */
function holder() {
  const of = (segment) => Array.from({ length: 4 }, (_, at) => ({ fact: "record", topic_id: 1n, segment, offset: BigInt(at), key: Buffer.from(`${segment}`), value: Buffer.from("") }));
  const grants = [0n, 1n].map((segment) => ({ segment, generation: 1n, start_offset: 0n, start_chunk: 1n }));
  const registered = { subscription_id: 1n, topic_id: 1n, grants, heartbeat_interval_seconds: 5n, lease_seconds: 30n, head: 1n, term_id: 7n, epoch: 1n };
  shardThat(async ({ type, acknowledgements = [] }) => {
    for (const [segment, , , end] of acknowledgements) console.log(`${segment} to ${end}`);
    return type === "register" ? registered : {};
  });
  Object.assign(Ledger.prototype, { check() {}, chunk: async (number) => (number === 1n ? { term_id: 7n, rows: [...of(0n), ...of(1n)] } : null), compacted: async () => null });
  return new Consumer({ ...broker, topic: "orders", subscription: "billing", ledger: "nowhere" });
}
prints("what a run gives back after a failure in another segment is not acknowledged", ["0 to 1", "segment 1, offset 0: bad"], async () => {
  const handler = ({ segment }) => sleep(segment ? 100 : 300).then(() => { if (segment) throw new Error("bad"); });
  await holder().run(handler, { concurrency: 2, retry: { attempts: 1 } }).catch(({ message }) => console.log(message));
});
prints("a record that was not delivered or is another topic's is not acknowledged", ["acknowledge: record=Object: use a record that this consumer has delivered", "acknowledge: record=Object: use a record that this consumer has delivered", "0 to 1", "acknowledge: this consumer is closed"], async () => {
  const consumer = holder();
  await consumer.open();
  const { value } = await consumer[Symbol.asyncIterator]().next();
  const attempts = [{ ...value, offset: 3n }, { ...value, topic: "payments" }, value].map((given) => () => consumer.acknowledge(given));
  for (const attempt of [...attempts, () => consumer.close(), attempts[2]]) await (async () => attempt())().catch(({ message }) => console.log(message));
});

prints("records that are due at once are read again one by one, and none while a run is far enough ahead", ["0 true", "1"], async () => {
  let [reading, most, ended] = [0, 0, false];
  const readOne = async () => { most = Math.max(most, ++reading); await sleep(1); reading--; return {}; };
  const put = (_, row, { deliveryCount }) => (ended = deliveryCount === 100);
  const parts = { acknowledger: {}, holdings: { all: [] }, feed: { readOne, put }, connection: { guard: (work) => work() } };
  const deliveries = new Deliveries(parts);
  const held = { isReadable: true, paused: setTimeout(() => (held.paused = console.log(most, deliveries.isDue)), 300) };
  deliveries.schedule(held, Array.from({ length: 100 }, (_, at) => [BigInt(at), BigInt(at + 1), 0n, 1n]));
  await deliveries.run(() => ended);
  console.log(most);
});

const fifty = Array(50).fill("v").join();
prints("dead letters with many headers are stored in parts and parked ones have a keeper", ["dead dead-letters-0-3", fifty, fifty, "confirm_dead_letters 100", "undefined"], async () => {
  const header = (at) => ({ name: `h${at}`, value: Buffer.from("1") });
  const row = { key: Buffer.from("k"), value: Buffer.from("v"), timestamp_ms: 1n, headers: Array.from({ length: 64 }, (_, at) => header(at)) };
  const letter = (at) => ({ topic: "dead", number: BigInt(at + 1), died_at_ms: 1n, segment: 0n, offset: BigInt(at), start_chunk: 1n, deliveries: 1n, reason: "", parked_number: BigInt(at + 1) });
  const shard = shardThat(async ({ type, topic, subscription }) => (type === "create_subscription" ? console.log(topic, subscription) : { topic_id: 1n }));
  const membership = { subscriptionId: 3n, topicId: 1n, ask: async (type, { stored }) => console.log(type, stored.length), hurry() {} };
  const [connection, names] = [new Connection(broker, { onFailure() {} }), { topic: "orders", subscription: "billing" }];
  await connection.shardOf("orders");
  const sender = new DeadLetters({ connection, shard, membership, names, broker, feed: { readOne: async () => row } });
  await sender.heard({ dead_letters: Array.from({ length: 100 }, (_, at) => letter(at)), sender_since_ms: 1n, sender_secret: "s" });
  console.log(sender.problem);
});

prints("a compacted object may have more records than a call has arguments", ["200000 199999n"], async () => {
  const { rows } = await new Ledger(folder, 0n, "a").compacted(1n, () => true);
  console.log(rows.length, rows.at(-1).offset);
});

prints("nothing more is read of a segment that has too much that is not stored", ["1", "1", "0", "0", "0"], async () => {
  const held = () => new HeldSegment({ segment: 0n, generation: 1n, start_offset: 0n, start_chunk: 1n });
  const of = (name, count) => { const each = held(); for (let at = 0; at < count; at++) each[name].set(at, Buffer.from("k")); return each; };
  const all = [held(), of("pending", 99_999), of("pending", 100_000), of("parked", 9999), of("parked", 10_000)];
  const feed = new Feed({ connection: { changed: { notify() {} } } });
  feed.space.wait = async () => feed.end();
  for (const each of all) { await feed.put(each, { offset: 0n, key: Buffer.from("k") }); console.log(each.queued); }
});

prints("a batch that is unknown is not sent again once an opening has decided that it is not stored", ["DeliveryUnknownError", "second"], async () => {
  const verdicts = [{ type: "rejected", verdict: "out_of_order", reason: "" }];
  const session = sessionOf(({ topic }) => verdicts.shift() ?? { type: console.log(topic) ?? "committed" }, 100);
  const offer = (topic, ms) => session.offer({ type: "produce", topic }, performance.now() + ms).catch(({ name }) => name);
  const [first, second] = [offer("first", 150), offer("second", 5000)];
  console.log(await first);
  await second;
  session.end(new Error("over"));
});

prints("a place of a topic that does not answer may have it, so the topic is not where another place says no", ["no leader", "0", "invalid: no topic", "1", "no leader of shard 1 answers"], async () => {
  const { default: { default: { prototype: client } } } = await import("../node_modules/mqtt/build/lib/client.js");
  const tell = (topic, message) => server.emit("message", `headgate/local/${topic}`, encode({ ledger_id: Buffer.from("aa", "hex"), ...message }));
  const reply = (request_id, body) => tell("clients/anonymous/one/replies", { type: "reply", request_id, leader_epoch: 1n, body });
  const answers = { find_topic: (shard) => (shard === home ? { topic_id: 1n } : {}), describe_topic: () => ({ type: "rejected", verdict: "invalid", reason: "no topic" }), describe_leader: () => ({ type: "leader", window: 8n }) };
  const answer = (shard, { request_id, body: { type } }) => leads[shard] && reply(request_id, answers[type](shard));
  const publish = (topic, payload) => topic.includes("/requests/") && setTimeout(answer, 1, Number(topic.split("/")[3]), decode(payload));
  let [server, leads, home] = [null, { 1: true }, 0];
  Object.assign(client, { connect() { server = this; }, publish, async subscribeAsync() {}, async endAsync() {} });
  const connection = new Connection({ ...broker, clientId: "one" }, { onFailure() {} });
  await sleep(server.emit("connect", {}));
  tell("cluster", { ledger_id: "aa", protocol: 3n, shards: 2n, earlier_shards: [1n] });
  await connection.shardOf("orders").catch(({ message }) => console.log(message.slice(-200).match(/no leader/)[0]));
  console.log(String((await connection.shardOf("orders", (leads[0] = true))).number));
  await new ParkedRecords({ connection }).take("orders", Buffer.from("k"), 1n, 1n, [], (home = 1)).catch(({ message }) => console.log(message));
  console.log(String((await connection.shardOf("orders")).number));
  await connection.shardOf("orders", connection.forget("orders", (leads[1] = false))).catch(({ message }) => console.log(message));
});
