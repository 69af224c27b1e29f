// A STREAM consumer for headgate, written from docs/protocol.md and docs/ledger.md alone.
//
// It delivers the records of one topic one after the other. A record counts as processed when its callback resolves.
// It registers for whole segments, and reads a ledger in a local folder. Every integer in a message, a header or a
// manifest is a BigInt, because ids have 63 bits and numbers of JavaScript have 53.
import { randomBytes, randomInt } from "node:crypto";
import { decode as unpack, encode as pack } from "@msgpack/msgpack";
import mqtt from "mqtt";
import { murmur3 } from "./producer.mjs";
import { LedgerFolder } from "./ledger.mjs";

const PROTOCOL = 2n;
const USER = "anonymous"; // of a client that gives the broker no user name
const REPLY_MS = 5000;
const POLL_MS = 1000; // between two attempts to read a chunk that is not known to exist
const STOP_MS = 10_000; // for storing the last acknowledgements and leaving

class Refused extends Error {
  constructor({ verdict, reason }) {
    super(`${verdict}: ${reason}`);
    this.verdict = verdict;
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const max = (a, b) => (a > b ? a : b);
const encode = (value) => Buffer.from(pack(value, { useBigInt64: true }));

function decode(bytes) {
  const widened = (value) => {
    if (Number.isInteger(value)) return BigInt(value);
    if (Array.isArray(value)) return value.map(widened);
    if (value === null || typeof value !== "object" || value instanceof Uint8Array) return value;
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, widened(item)]));
  };
  return widened(unpack(bytes, { useBigInt64: true }));
}

/** What the consumer has read and no leader has confirmed: term id → its highest chunk. */
class History {
  #points = new Map();

  add(chunk, termId, previousTermId = termId) {
    if (chunk > (this.#points.get(termId) ?? 0n)) this.#points.set(termId, chunk);
    if (previousTermId !== termId && this.#points.get(previousTermId) < chunk) this.#points.delete(previousTermId);
  }

  get points() {
    return [...this.#points].map(([termId, chunk]) => [chunk, termId]);
  }

  confirmed(points) {
    for (const [chunk, termId] of points) if (this.#points.get(termId) === chunk) this.#points.delete(termId);
  }
}

// The consumer

export class Consumer {
  #options; #prefix; #clientId; #address; #mqtt; #ledger; #shard; #requestTopic;
  #names; // topic, subscription, consumer and incarnation, which every request names
  #epoch = 0n; // of the leader that is believed, because it has replied
  #newestEpoch = 0n; // at least that; higher if a push came from a later term
  #connection = null; // an object per connection, once it is subscribed to replies
  #question = null; // the present question who leads
  #heardEpoch = 0n; // the highest epoch that a question has to name
  #answeredAt = 0; // when a leader answered the last one
  #questions = new Map(); // request id → the epoch that was believed then
  #requestId = 2n ** 40n + BigInt(randomInt(2 ** 40));
  #requests = new Map(); // request id → {call, epoch}, of every attempt of the calls in progress
  #parts = null; // {epoch, number, contents} of the message that is incomplete
  #registration = null; // the newest reply to `register`
  #mustRegister = true;
  #heartbeatAt = 0;
  #acknowledgeAt = 0;
  #early = []; // pushes before the first registration
  #grantedSince = new Set(); // segments that a push granted since the registration was requested
  #holdings = new Map(); // segment → {segment, generation, grant, next, stored, end, chunk, revokedAt, misses}
  #released = new Map(); // segment → the highest generation that was revoked or confirmed
  #unheld = []; // revocations of segments that it does not hold, to be confirmed
  #delivering = null; // the holding whose record is being processed
  #history = new History();
  #head = 0n; // the newest chunk that was announced, or that a reply stated
  #provenHead = 0n; // the newest one that a reply stated
  #stopping = false;
  #failure = null;
  #waiters = [];

  /** `ledger` is the folder with the ledger. */
  constructor({ host, port, cluster, topic, subscription, consumer, ledger }) {
    this.#options = { host, port, topic, ledger };
    this.#prefix = `headgate/${cluster}`;
    this.#clientId = `js-${randomBytes(6).toString("hex")}`;
    this.#address = `${USER}/${this.#clientId}`;
    this.#names = { topic, subscription, consumer, incarnation: BigInt(Date.now()) };
  }

  /** Call `deliver` with each record, until `stop`. Throws what ended the consumer. */
  async run(deliver) {
    const gone = { topic: `${this.#prefix}/clients/${this.#address}/presence`, payload: this.#presence(false), qos: 1 };
    this.#mqtt = mqtt.connect({
      host: this.#options.host, port: this.#options.port, protocolVersion: 5, clean: true, clientId: this.#clientId,
      will: gone, reconnectPeriod: 250, keepalive: 5, queueQoSZero: false, resubscribe: false,
    });
    this.#mqtt.on("connect", () => this.#onConnect().catch(() => {})); // disconnected; the next connection subscribes
    this.#mqtt.on("message", (topic, payload) => this.#guard(async () => this.#onMessage(topic, decode(payload))));
    this.#mqtt.on("close", () => (this.#connection = null));
    this.#mqtt.on("error", () => {}); // mqtt.js reconnects automatically
    const reading = this.#guard(() => this.#read(deliver));
    await this.#guard(() => this.#talk(reading));
    this.#stopping = true;
    await reading;
    this.#mqtt.publish(gone.topic, this.#presence(false));
    await this.#mqtt.endAsync();
    if (this.#failure) throw this.#failure;
  }

  /** End after the present record: `run` stores the acknowledgements, leaves and returns. */
  stop() {
    if (!this.#stopping) setTimeout(() => (this.#failure ??= new Error(`not stored and left within ${STOP_MS} ms`)), STOP_MS).unref();
    this.#stopping = true;
    this.#notify();
  }

  async #guard(work) {
    try {
      await work();
    } catch (error) {
      this.#failure ??= error;
      this.stop();
    }
  }

  #presence = (online) => encode({ client_id: this.#clientId, online, incarnation: this.#names.incarnation });

  // Messages

  async #onConnect() {
    await this.#mqtt.subscribeAsync(`${this.#prefix}/clients/${this.#address}/replies`, { qos: 1, rh: 2 });
    this.#connection = {};
    this.#mustRegister = true;
    this.#mqtt.publish(`${this.#prefix}/clients/${this.#address}/presence`, this.#presence(true));
    await this.#mqtt.subscribeAsync(`${this.#prefix}/cluster`, { qos: 1 });
    this.#notify();
  }

  async #onMessage(topic, message) {
    if (topic === `${this.#prefix}/cluster`) await this.#onCluster(message);
    else if (topic.endsWith("/leader")) message.leader_epoch !== this.#epoch && this.#whoLeads(message.leader_epoch);
    else if (topic.endsWith("/head")) this.#head = max(this.#head, message.head);
    else if (message.type === "part") this.#onPart(topic, message);
    else if (message.type === "reply") this.#onReply(message);
    else this.#onPush(message);
    this.#notify();
  }

  async #onCluster({ protocol, shards, ledger_id }) {
    if (protocol !== PROTOCOL) throw new Error(`the cluster runs protocol ${protocol}, this client ${PROTOCOL}`);
    this.#shard = BigInt(murmur3(new TextEncoder().encode(this.#options.topic))) % shards;
    this.#requestTopic = `${this.#prefix}/shards/${this.#shard}/requests/${this.#address}`;
    this.#ledger = new LedgerFolder(this.#options.ledger, this.#shard, ledger_id);
    await this.#ledger.check();
    for (const [name, options] of [["head", { qos: 0, rh: 2 }], ["leader", { qos: 1 }]])
      this.#mqtt.subscribe(`${this.#prefix}/shards/${this.#shard}/${name}`, options);
    this.#whoLeads();
  }

  #onPart(topic, { leader_epoch, number, index, count, content }) {
    const known = this.#parts;
    if (known && (leader_epoch < known.epoch || (leader_epoch === known.epoch && number < known.number))) return;
    if (leader_epoch !== known?.epoch || number !== known.number)
      this.#parts = { epoch: leader_epoch, number, contents: new Map() };
    const { contents } = this.#parts.contents.set(index, content) && this.#parts;
    if (BigInt(contents.size) < count) return;
    const whole = Buffer.concat([...contents].sort(([a], [b]) => Number(a - b)).map(([, part]) => part));
    this.#guard(() => this.#onMessage(topic, decode(whole)));
  }

  // The leader: any program can forge an announcement, so it is only a reason to ask

  async #whoLeads(heard = 0n) {
    this.#heardEpoch = max(this.#heardEpoch, heard);
    if (this.#question) return;
    const question = (this.#question = {});
    await sleep(this.#answeredAt + 1000 - Date.now()); // a flood of announcements makes one question a second
    for (let pauseMs = 100; this.#question === question && !this.#failure; pauseMs = Math.min(2 * pauseMs, 5000)) {
      const body = { type: "describe_leader", heard_epoch: max(this.#heardEpoch, this.#epoch) };
      this.#questions.set(this.#publish(body, null), this.#epoch);
      await sleep(pauseMs);
    }
  }

  #onLeader(epoch, believedThen) {
    if (epoch < this.#epoch && believedThen !== this.#epoch) return; // it proved itself, but not against this belief
    this.#questions.clear();
    this.#question = null;
    this.#answeredAt = Date.now();
    this.#heardEpoch = this.#newestEpoch = epoch;
    if (epoch === this.#epoch) return;
    this.#epoch = epoch;
    this.#mustRegister = true;
  }

  // Requests and replies

  #publish(body, leader_epoch = this.#epoch) {
    const request_id = ++this.#requestId;
    if (this.#connection && this.#requestTopic)
      this.#mqtt.publish(this.#requestTopic, encode({ request_id, client_id: this.#clientId, leader_epoch, protocol: PROTOCOL, body }));
    return request_id;
  }

  /** Send `fields` until the leader replies. Its points, if it carries any, are confirmed then. */
  async #ask(type, fields = {}, withHistory = false) {
    const history = withHistory ? this.#history.points : [];
    const body = { type, ...this.#names, ...fields, ...(withHistory && { history }) };
    const call = { reply: null, last: 0n };
    for (let pauseMs = 25, waitMs = REPLY_MS; !this.#failure; pauseMs = Math.min(2 * pauseMs, 1000)) {
      while (!this.#epoch && !this.#failure) await this.#change(POLL_MS);
      const [epoch, connection] = [this.#epoch, this.#connection];
      const isSame = () => epoch === this.#epoch && connection === this.#connection;
      call.reply = null;
      this.#requests.set((call.last = this.#publish(body)), { call, epoch });
      const until = Date.now() + waitMs;
      while (!call.reply && isSame() && !this.#failure && Date.now() < until) await this.#change(until - Date.now());
      const { leader_epoch, body: answer } = call.reply ?? {};
      if (answer && !["not_leader", "unavailable"].includes(answer.verdict)) {
        for (const [id, request] of this.#requests) if (request.call === call) this.#requests.delete(id);
        if (answer.type === "rejected") throw new Refused(answer);
        if (withHistory) this.#history.confirmed(history);
        if (answer.term_id) this.#history.add(answer.head, answer.term_id);
        this.#provenHead = max(this.#provenHead, answer.head ?? 0n);
        this.#head = max(this.#head, this.#provenHead);
        return answer;
      }
      if (!answer && !isSame()) continue; // another leader or connection: no reason to wait
      if (!answer) waitMs = Math.min(2 * waitMs, 16_000);
      if (!answer || leader_epoch > epoch) this.#whoLeads(leader_epoch);
      await sleep(pauseMs * (0.5 + Math.random() / 2));
    }
    throw this.#failure;
  }

  #onReply({ request_id, leader_epoch, body }) {
    const question = this.#questions.get(request_id);
    if (question !== undefined) return this.#onLeader(leader_epoch, question);
    const request = this.#requests.get(request_id);
    if (!request || leader_epoch < request.epoch) return; // unknown, or from a deposed leader
    const refused = body.type === "rejected";
    if (refused ? request_id === request.call.last : leader_epoch === this.#epoch) request.call.reply = { leader_epoch, body };
  }

  /** The one conversation with the leader: each request waits for the one before it. */
  async #talk(reading) {
    let ended = false;
    reading.then(() => (ended = true) && this.#notify());
    while (!this.#failure) {
      const now = Date.now();
      const unstored = [...this.#holdings.values()].filter((held) => held.stored < held.next).slice(0, 1000);
      const finished = [...this.#holdings.values()].filter((held) => this.#isFinished(held, now));
      const released = [...this.#unheld, ...finished].map(({ segment, generation }) => [segment, generation]).slice(0, 250);
      if (this.#mustRegister) await this.#register();
      else if (now >= this.#heartbeatAt) await this.#heartbeat();
      else if (released.length) await this.#confirm(released);
      else if (unstored.length && now >= this.#acknowledgeAt) await this.#acknowledge(unstored);
      else if (ended && !unstored.length) return void (await this.#ask("leave"));
      else await this.#change(Math.min(this.#heartbeatAt - now, POLL_MS));
    }
  }

  async #register() {
    this.#mustRegister = false;
    this.#grantedSince.clear();
    const options = { subscription_type: "STREAM", start: "earliest" };
    if (this.#registration) options.subscription_id = this.#registration.subscription_id;
    const reply = await this.#ask("register", options, true); // fenced: another program has the name
    const early = this.#registration ? [] : this.#early.splice(0);
    this.#registration = reply;
    for (const push of early) if (push.leader_epoch === this.#epoch) push.revoked?.forEach((each) => this.#revoke(each));
    const listed = new Map(reply.grants.map((grant) => [grant.segment, grant.generation]));
    for (const [segment, held] of this.#holdings)
      if (listed.get(segment) !== held.generation && !held.revokedAt && !this.#grantedSince.has(segment)) this.#holdings.delete(segment);
    for (const grant of reply.grants) this.#grant(grant);
    this.#heartbeatAt = 0; // at once: the leader repeats what was lost or ignored before
  }

  async #heartbeat() {
    this.#heartbeatAt = Date.now() + Number(this.#registration.heartbeat_interval_seconds) * 1000;
    const held = [...this.#holdings.values()].map(({ segment, generation }) => [segment, generation]);
    try {
      await this.#ask("heartbeat", { held }, true);
    } catch (error) {
      if (error.verdict !== "out_of_order") throw error;
      this.#mustRegister = true;
    }
  }

  async #acknowledge(unstored) {
    const ends = unstored.map((held) => held.next);
    const acknowledgements = unstored.map(({ segment, generation }, at) => [segment, generation, 0n, ends[at]]);
    try {
      const { rejected } = await this.#ask("acknowledge", { acknowledgements }, true);
      const refused = new Set(rejected?.map(([index]) => Number(index)));
      unstored.forEach((held, at) => !refused.has(at) && (held.stored = max(held.stored, ends[at])));
      if (refused.size) this.#acknowledgeAt = Date.now() + POLL_MS;
    } catch (error) {
      if (!(error instanceof Refused) || error.verdict === "other_history" || this.#stopping) throw error;
      this.#acknowledgeAt = Date.now() + POLL_MS; // the right may be given back: keep them while the segments are held
    }
  }

  /** A revoked segment is finished once everything is processed and stored, or the time for that is up. */
  #isFinished(held, now) {
    const timeUp = now - held.revokedAt > (Number(this.#registration.revoke_timeout_seconds ?? 30) * 2000) / 3;
    return held.revokedAt && held !== this.#delivering && (held.stored >= held.next || timeUp);
  }

  async #confirm(released) {
    await this.#ask("confirm_revoked", { released });
    const isReleased = (each) => released.some(([segment, generation]) => each.segment === segment && each.generation === generation);
    this.#unheld = this.#unheld.filter((each) => !isReleased(each));
    for (const held of this.#holdings.values()) if (isReleased(held)) this.#release(held);
  }

  // Pushes

  #onPush(push) {
    const { consumer, subscription, topic, incarnation } = this.#names;
    if (push.consumer !== consumer || push.subscription !== subscription || push.topic !== topic) return;
    if (push.incarnation !== incarnation || push.leader_epoch < this.#newestEpoch) return;
    if (push.leader_epoch > this.#newestEpoch) this.#whoLeads((this.#newestEpoch = push.leader_epoch));
    if (push.type === "consumer_fenced") {
      this.#holdings.clear();
      this.#mustRegister = true;
    } else if (!this.#registration) this.#early.push(push);
    else {
      push.revoked?.forEach((revocation) => this.#revoke(revocation));
      push.granted?.forEach((grant) => this.#grant(grant) && this.#grantedSince.add(grant.segment));
    }
  }

  #grant(grant) {
    const { segment, generation, start_offset: next, start_chunk: chunk, end_offset: end = null } = grant;
    if (generation <= max(this.#released.get(segment) ?? -1n, this.#holdings.get(segment)?.generation ?? -1n)) return false;
    this.#holdings.set(segment, { segment, generation, grant, next, stored: next, end, chunk, revokedAt: 0, misses: 0 });
    return true;
  }

  #revoke({ segment, generation, final }) {
    const held = this.#holdings.get(segment);
    if (generation < max(this.#released.get(segment) ?? -1n, held?.generation ?? -1n)) return;
    if (held?.generation === generation && !final) return (held.revokedAt ||= Date.now());
    this.#release({ segment, generation });
    if (!final) this.#unheld.push({ segment, generation });
  }

  #release({ segment, generation }) {
    this.#released.set(segment, generation);
    this.#holdings.delete(segment);
  }

  // Records

  #isReadable = (held) =>
    this.#holdings.get(held.segment) === held && !held.revokedAt && !(held.end !== null && held.next >= held.end) && !this.#stopping;

  async #read(deliver) {
    let tried = { number: -1n, at: 0 };
    while (!this.#stopping) {
      const readable = [...this.#holdings.values()].filter(this.#isReadable);
      const number = readable.map((held) => held.chunk).reduce((a, b) => (a < b ? a : b), this.#head + 1n);
      const behind = readable.filter((held) => held.chunk === number);
      const again = number === tried.number || number > this.#head;
      const waitMs = again ? tried.at + POLL_MS - Date.now() : 0;
      if (!behind.length || waitMs > 0) await this.#change(behind.length ? waitMs : POLL_MS);
      else {
        tried = { number, at: Date.now() };
        await this.#readChunk(number, behind, deliver);
      }
    }
  }

  async #readChunk(number, behind, deliver) {
    const isProven = number <= this.#provenHead;
    const chunk = await this.#ledger.chunk(number);
    if (chunk) {
      this.#history.add(number, chunk.term_id, chunk.previous_term_id);
      for (const row of chunk.rows) {
        const held = row.topic_id === this.#registration.topic_id && behind.find(({ segment }) => segment === row.segment);
        if (held) await this.#deliver(held, row, number, deliver);
      }
      for (const held of behind) held.chunk = number + 1n;
      return;
    }
    const [held] = behind; // trimmed, or not written yet
    const range = await this.#ledger.compacted(number, this.#registration.topic_id, held.segment, held.next);
    for (const row of range?.rows ?? []) await this.#deliver(held, row, number, deliver);
    if (range) Object.assign(held, { chunk: range.last + 1n, misses: 0 });
    else if (!isProven) this.#head = number - 1n; // an announcement may be forged
    else if (++held.misses > 10) throw new Error(`chunk ${number} is missing, and no manifest includes it`);
  }

  async #deliver(held, { fact, offset, end_offset, timestamp_ms, key, value, headers }, number, deliver) {
    if (fact === "sealed") held.end = end_offset;
    if (fact !== "record" || offset < held.next || !this.#isReadable(held)) return;
    if (offset > held.next) throw new Error(`segment ${held.segment}: offset ${offset} follows ${held.next - 1n} in chunk ${number}`);
    const { starts = [], buckets = 16n } = held.grant; // a segment that was shared starts at one offset per bucket
    const bucket = (BigInt(murmur3(key) & 0xffff) * buckets) >> 16n;
    const start = starts.find(([first, end]) => first <= bucket && bucket < end)?.[2] ?? 0n;
    this.#delivering = held;
    if (offset >= start) await deliver({ segment: held.segment, offset, timestampMs: timestamp_ms, key, value, headers: headers ?? [] });
    this.#delivering = null;
    held.next = offset + 1n;
    this.#notify();
  }

  #change = (ms) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, Math.max(1, ms));
      this.#waiters.push(() => resolve(clearTimeout(timer)));
    });

  #notify() {
    this.#waiters.splice(0).forEach((wake) => wake());
  }
}
