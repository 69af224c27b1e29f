// A producer for headgate, written from docs/protocol.md alone. It delivers exactly once and in order.
//
// It has one identity on the shard of one topic. Batches are numbered once and never rebuilt. Unanswered batches are
// sent again in order after every refusal, timeout, reconnection or change of leader. It has no deadlines, no named
// producers and one topic. A verdict that ends the identity fails every unanswered batch with an error.
import { randomBytes, randomInt } from "node:crypto";
import { decode as unpack, encode as pack } from "@msgpack/msgpack";
import mqtt from "mqtt";

// Producer ids have 63 bits; numbers of JavaScript have 53.
const decode = (bytes) => unpack(bytes, { useBigInt64: true });
const encode = (value) => pack(value, { useBigInt64: true });

const PROTOCOL = 2;
const USER = "anonymous"; // of a client that gives the broker no user name
const REPLY_MS = 5000; // after this long without a reply: send again
const FIRST_PAUSE_MS = 25;
const LONGEST_PAUSE_MS = 1000;
const QUESTION_MS = 250; // between two questions who leads
const MAX_EPOCH = 2 ** 31 - 1;
const QUIET_MS = 10_000; // after this long without a reply: send one batch alone first

export function murmur3(bytes) {
  const rotl = (x, r) => (x << r) | (x >>> (32 - r));
  const mix = (k) => Math.imul(rotl(Math.imul(k, 0xcc9e2d51), 15), 0x1b873593);
  const whole = bytes.length & ~3;
  let h = 0;
  for (let i = 0; i < whole; i += 4) {
    const k = bytes[i] | (bytes[i + 1] << 8) | (bytes[i + 2] << 16) | (bytes[i + 3] << 24);
    h = (Math.imul(rotl(h ^ mix(k), 13), 5) + 0xe6546b64) | 0;
  }
  let tail = 0;
  for (let i = bytes.length - 1; i >= whole; i--) tail = (tail << 8) | bytes[i];
  h ^= mix(tail) ^ bytes.length;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

export class Producer {
  #prefix; // headgate/<cluster>
  #clientId;
  #address; // <user>/<client>
  #presenceTopic;
  #mqtt;
  #ready = false; // connected, and subscribed to replies
  #topic;
  #shard = null;
  #identity = null;
  #epoch = 0; // of the leader that is believed, because it has replied
  #window = 0; // of that leader; 0: none has replied
  #questions = new Map(); // request id of each question who leads → the epoch that was believed then
  #questionTimer = null;
  #attempt = 0; // rises with each replay; refusals of an older attempt are ignored
  #probed = false; // a batch was committed since the last change: the window is open
  #pending = []; // unanswered batches in the order of their sequence: {sequence, records, resolve, reject}
  #inFlight = 0; // how many of them, from the head, were sent under this attempt
  #nextSequence = 0;
  #requestId = 2n ** 40n + BigInt(randomInt(2 ** 40)); // a BigInt in every reply
  #requests = new Map(); // request id → {batch, attempt, epoch}, of every attempt of every pending batch
  #call = null; // the one request that is no batch: {id, resolve}
  #pauseMs = FIRST_PAUSE_MS;
  #pauseTimer = null;
  #watchTimer = null;
  #heardAt = Date.now();
  #sentAt = Date.now();
  #failure = null;
  #waiters = []; // resolved at the next change of the state above
  resent = 0; // batches that were sent again, for statistics

  constructor({ host, port, cluster, topic, clientId }) {
    this.#prefix = `headgate/${cluster}`;
    this.#clientId = clientId ?? `js-${randomBytes(6).toString("hex")}`;
    this.#address = `${USER}/${this.#clientId}`;
    this.#presenceTopic = `${this.#prefix}/clients/${this.#address}/presence`;
    this.#topic = topic;
    const gone = { topic: this.#presenceTopic, payload: this.#presence(false), qos: 1 };
    this.#mqtt = mqtt.connect({
      host, port, protocolVersion: 4, clean: true, clientId: this.#clientId, will: gone,
      reconnectPeriod: 250, keepalive: 5, queueQoSZero: false, resubscribe: false,
    });
    this.#mqtt.on("connect", () => this.#onConnect());
    this.#mqtt.on("message", (topic, payload) => this.#onMessage(topic, payload));
    this.#mqtt.on("close", () => (this.#ready = false));
    this.#mqtt.on("error", () => {}); // mqtt.js reconnects automatically
  }

  /** Wait for the shard and its leader, and open an identity. */
  async open() {
    while (!this.#failure && (this.#shard === null || this.#window === 0)) await this.#change();
    if (this.#failure) throw this.#failure;
    const token = randomBytes(16).toString("hex"); // the same for every attempt
    const answer = await this.#ask({ type: "open_producer", token });
    this.#identity = { producer_id: answer.producer_id, producer_epoch: answer.producer_epoch };
    this.#watchTimer = setInterval(() => this.#watch(), 250);
  }

  /** Queue one batch of [key, value] byte arrays, each with an array of [name, bytes] as headers if it has any; the promise resolves once it is durable. Waits for space first. */
  async send(pairs) {
    while (!this.#failure && this.#pending.length >= 2 * this.#window) await this.#change();
    if (this.#failure) throw this.#failure;
    const records = pairs.map(([key, value]) => [key, value, BigInt(Date.now())]);
    const headers = pairs.flatMap(([, , own = []], index) => own.map(([name, value]) => [index, name, value]));
    const stored = new Promise((resolve, reject) => {
      this.#pending.push({ sequence: this.#nextSequence++, records, headers, resolve, reject });
    });
    stored.catch(() => {}); // the caller sees the error if it awaits `stored`
    this.#pump();
    return { stored };
  }

  /** Wait until every batch is answered, and disconnect. */
  async close() {
    while (!this.#failure && this.#pending.length) await this.#change();
    clearInterval(this.#watchTimer);
    clearTimeout(this.#pauseTimer);
    clearTimeout(this.#questionTimer);
    this.#mqtt.publish(this.#presenceTopic, this.#presence(false));
    await this.#mqtt.endAsync();
    if (this.#failure) throw this.#failure;
  }

  // Connection

  #presence = (online) => Buffer.from(encode({ client_id: this.#clientId, online }));

  async #onConnect() {
    const topics = ["cluster", `clients/${this.#address}/replies`].map((name) => `${this.#prefix}/${name}`);
    try {
      await this.#mqtt.subscribeAsync(topics, { qos: 1 });
    } catch {
      return; // disconnected; the next connection subscribes
    }
    this.#ready = true;
    this.#mqtt.publish(this.#presenceTopic, this.#presence(true));
    this.#replay(0);
  }

  #onMessage(topic, payload) {
    const message = decode(payload);
    if (topic === `${this.#prefix}/cluster`) this.#onCluster(message);
    else if (topic.endsWith("/leader")) this.#onLeader(message);
    else if (topic.endsWith("/replies")) this.#onReply(message);
    this.#notify();
  }

  #onCluster({ protocol, shards }) {
    if (protocol !== PROTOCOL) return this.#fail(new Error(`the cluster runs protocol ${protocol}, this client ${PROTOCOL}`));
    this.#shard = murmur3(new TextEncoder().encode(this.#topic)) % shards;
    this.#mqtt.subscribe(`${this.#prefix}/shards/${this.#shard}/leader`, { qos: 1 });
    this.#whoLeads();
  }

  // The leader: any program can forge an announcement, so it is only a reason to ask

  #onLeader({ shard, leader_epoch, window }) {
    if (shard !== this.#shard || !(leader_epoch <= MAX_EPOCH)) return;
    if (leader_epoch !== this.#epoch || window !== this.#window) this.#whoLeads(leader_epoch);
  }

  /** Ask at once, unless the last question is recent, and again until there is a reply. */
  #whoLeads(heard = 0, recent = this.#questionTimer !== null) {
    clearTimeout(this.#questionTimer);
    this.#questionTimer = setTimeout(() => this.#whoLeads(heard, false), QUESTION_MS);
    if (recent) return;
    const question = { type: "describe_leader", heard_epoch: Math.max(heard, this.#epoch) };
    this.#questions.set(this.#publish(question, null), this.#epoch);
    if (this.#questions.size > 16) this.#questions.delete(this.#questions.keys().next().value);
  }

  #believe({ leader_epoch, body: { window } }, believedThen) {
    if (leader_epoch < this.#epoch && believedThen !== this.#epoch) return; // it proved itself, but not against this belief
    clearTimeout(this.#questionTimer);
    this.#questionTimer = null;
    this.#window = window;
    if (leader_epoch === this.#epoch) return;
    this.#epoch = leader_epoch;
    this.#replay(0); // another leader: no reason to wait
  }

  // Requests and replies

  #publish(body, leader_epoch = this.#epoch) {
    const request_id = ++this.#requestId;
    const payload = encode({ request_id, client_id: this.#clientId, leader_epoch, protocol: PROTOCOL, body });
    if (this.#ready) this.#mqtt.publish(`${this.#prefix}/shards/${this.#shard}/requests/${this.#address}`, Buffer.from(payload));
    return request_id;
  }

  async #ask(body) {
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      const answer = await new Promise((resolve) => {
        setTimeout(resolve, REPLY_MS, null);
        this.#call = { id: this.#publish(body), resolve };
      });
      if (answer && answer.type !== "rejected") return answer;
      if (!answer) this.#whoLeads();
      if (answer && answer.verdict !== "not_leader" && answer.verdict !== "unavailable") throw new Error(answer.reason);
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  #onReply(reply) {
    if (reply.type !== "reply") return; // a push is for consumers
    this.#heardAt = Date.now();
    const question = this.#questions.get(reply.request_id);
    if (question !== undefined) return this.#believe(reply, question);
    const older = reply.leader_epoch < this.#epoch;
    if (reply.leader_epoch > this.#epoch) this.#whoLeads(reply.leader_epoch);
    if (this.#call?.id === reply.request_id) return this.#call.resolve(reply.body);
    const request = this.#requests.get(reply.request_id);
    if (!request) return; // answered already, or unknown
    if (reply.body.type === "committed") this.#committed(request, older);
    else if (request.attempt === this.#attempt && reply.leader_epoch >= request.epoch) this.#rejected(request, reply.body);
  }

  #committed({ batch, attempt }, older) {
    while (this.#pending.length && this.#pending[0].sequence <= batch.sequence) {
      this.#pending.shift().resolve(); // earlier ones are durable too, even if their replies were lost
      this.#inFlight = Math.max(0, this.#inFlight - 1);
    }
    for (const [id, request] of this.#requests) if (request.batch.sequence <= batch.sequence) this.#requests.delete(id);
    this.#pauseMs = FIRST_PAUSE_MS;
    if (attempt === this.#attempt && !older) this.#probed = true;
    this.#pump();
  }

  #rejected({ batch }, { verdict, reason }) {
    const head = batch === this.#pending[0];
    if (["fenced", "forgotten", "invalid"].includes(verdict) || (verdict === "out_of_order" && head)) {
      this.#fail(new Error(`sequence ${batch.sequence} is ${verdict}: ${reason}; the outcome of unanswered batches is unknown`));
    } else this.#replay(this.#nextPause());
  }

  // Sending and replaying

  #pump() {
    if (!this.#identity || this.#pauseTimer || this.#failure || !this.#ready) return;
    const limit = Math.min(this.#probed ? this.#window : 1, this.#pending.length);
    while (this.#inFlight < limit) {
      const batch = this.#pending[this.#inFlight++];
      if (batch.sent) this.resent++;
      batch.sent = true;
      const { sequence, records, headers } = batch;
      const id = this.#publish({ type: "produce", topic: this.#topic, records, headers, ...this.#identity, sequence });
      this.#requests.set(id, { batch, attempt: this.#attempt, epoch: this.#epoch });
      this.#sentAt = Date.now();
    }
  }

  /** Send every unanswered batch again, in order, after a pause. */
  #replay(pauseMs) {
    this.#attempt++;
    this.#inFlight = 0;
    this.#probed = false;
    clearTimeout(this.#pauseTimer);
    this.#pauseTimer = setTimeout(() => {
      this.#pauseTimer = null;
      this.#pump();
    }, pauseMs);
  }

  #nextPause() {
    const pause = this.#pauseMs * (0.5 + Math.random() / 2);
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
    return pause;
  }

  #watch() {
    const silent = Date.now() - Math.max(this.#heardAt, this.#sentAt);
    if (this.#inFlight && silent > REPLY_MS) {
      this.#whoLeads();
      this.#replay(this.#nextPause());
    }
    if (Date.now() - this.#heardAt > QUIET_MS) this.#probed = false;
  }

  #fail(error) {
    this.#failure = error;
    for (const batch of this.#pending.splice(0)) batch.reject(error);
    this.#notify();
  }

  #change = () => new Promise((resolve) => this.#waiters.push(resolve));

  #notify() {
    this.#waiters.splice(0).forEach((resolve) => resolve());
  }
}
