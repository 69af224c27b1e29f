// The connection to the broker: presence, the description of the cluster, and who gets which message.
import { randomBytes, randomInt } from "node:crypto";
import { createSecureContext } from "node:tls";
import mqtt from "mqtt";
import { decode, encode } from "./encoding.mjs";
import { HeadgateError, OtherHistoryError, warn } from "./errors.mjs";
import { shardOf } from "./hashing.mjs";
import { renewed, withProtocol } from "./options.mjs";
import { Shard } from "./shard.mjs";
import { Signal } from "./waiting.mjs";

const [PROTOCOL, SILENT_MS] = [3n, 10_000]; // daemons that hear of another ledger describe theirs again
const [RECONNECT_MS, REFUSED_MS] = [250, 2000]; // a broker may ban who tries more often with what it refuses
const REFUSALS = [ // what the broker or TLS says, and what to check then
  [/not authorized|bad user ?name|password|banned/i, "username and password in the option mqtt, whether a token has expired, and the broker's users"],
  [/certificate|unknown ca|altname/i, "ca, cert and key in the option mqtt, and whether a certificate has expired"],
];

export class Connection {
  cluster = null; // its description, once it is known
  messageBytes = 4_194_304; // of a request; a broker disconnects who sends more than it takes
  session = null; // an object per connection, once it is subscribed to replies
  replies = new Map(); // request id → function that gets the reply
  changed = new Signal();
  failure = null;
  onPush = () => {};
  #mqtt; #prefix; #broker; #address; #presenceTopic; #incarnation; #onFailure; #connectMs;
  #problem = null; // why the broker was not reached the last time
  #requestId = 2n ** 40n + BigInt(randomInt(2 ** 40));
  #shards = new Map(); // number → Shard
  #counts = []; // the longest list of numbers of shards that was received: a daemon may be late
  #places = new Map(); // topic that more than one shard can have → promise of the number of its shard
  #ledger = null; #other = null; // id of the ledger that all messages name; timer since another one was described
  #parts = new Map(); // ledger/shard → {epoch, number, contents} of its newest message
  /** `mqtt` has further options of mqtt.js, such as `username`, `ca` and `password`. */
  constructor({ host, port, cluster, clientId, connectTimeoutMs = 30_000, mqtt: given = {} }, { incarnation, onFailure }) {
    const options = withProtocol(given);
    this.#connectMs = connectTimeoutMs;
    this.#broker = `${host}:${port}`;
    this.clientId = clientId ?? `js-${randomBytes(6).toString("hex")}`;
    this.#prefix = `headgate/${cluster}`;
    this.#address = `${options.username ?? "anonymous"}/${this.clientId}`;
    this.#presenceTopic = `${this.#prefix}/clients/${this.#address}/presence`;
    this.#incarnation = incarnation;
    this.#onFailure = onFailure;
    const will = { topic: this.#presenceTopic, payload: this.#presence(false), qos: 1 };
    this.#mqtt = mqtt.connect({
      host, port, protocolVersion: 5, clean: true, clientId: this.clientId, will, reconnectPeriod: RECONNECT_MS, keepalive: 5,
      reconnectOnConnackError: true, queueQoSZero: false, resubscribe: false, ...options, ...renewed(options),
    });
    this.#mqtt.on("reconnect", () => this.#renew(options));
    this.#mqtt.on("connect", ({ properties }) => this.#onConnect(properties?.maximumPacketSize).catch(() => {})); // disconnected; the next connection subscribes
    this.#mqtt.on("message", (topic, payload) => this.guard(() => this.#onPayload(topic, payload)));
    this.#mqtt.on("close", () => this.#onSession(null));
    this.#mqtt.on("error", (error) => this.#onError(error)); // mqtt.js reconnects automatically
  }
  #onError(error) {
    this.#problem = error.reason ?? (error.message || error.code); // OpenSSL has a short reason
    this.#mqtt.options.reconnectPeriod = this.#refusal ? REFUSED_MS : RECONNECT_MS;
    if (this.cluster) warn(this.#refusal ? "refused" : "broker", `${this.#unreachable()}; this client waits until it is accepted again`);
  }
  /** The next connection has the newest password and certificates. If the program cannot give them now, the last ones stay. */
  #renew(options) {
    try {
      const newest = renewed(options);
      createSecureContext({ ...options, ...newest }); // a file may be half written
      Object.assign(this.#mqtt.options, newest);
    } catch (error) {
      this.#onError(error);
    }
  }
  get #refusal() { return REFUSALS.find(([words]) => words.test(this.#problem)); }
  /** Why there is no connection, and what to check. */
  #unreachable() {
    const remedy = this.#refusal?.[1] ?? "host and port, and whether the broker runs";
    return `broker ${this.#broker}: ${this.#problem ?? "no answer"}; check ${remedy}`;
  }
  /** Return the shard of a topic, once its leader is known. If more than one can have it, they are asked. */
  async shardOf(topic) {
    await this.#until(() => this.cluster, () => (this.session ? this.#noDaemon() : this.#unreachable()));
    const places = [...new Set(this.#counts.map((count) => shardOf(topic, count)).reverse())];
    if (places.length > 1 && !this.#places.has(topic)) this.#places.set(topic, this.#find(topic, places));
    return this.#shard(places.length > 1 ? await this.#places.get(topic) : places[0]);
  }
  #noDaemon = () => `found no daemon of cluster '${this.#prefix.slice("headgate/".length)}' through broker ${this.#broker}; is one running, is that its name, and does the broker's access list (headgate access export) allow this user?`;
  forget = (topic) => this.#places.delete(topic); // its leader has refused it, so it may be elsewhere
  #find(topic, places) {
    const isAt = async (number) => "topic_id" in (await (await this.#shard(number)).ask({ type: "find_topic", topic }, performance.now() + this.#connectMs));
    const ask = async (number) => ((await isAt(number)) ? number : Promise.reject());
    const none = ({ errors }) => {
      const failure = errors.find(Boolean);
      if (!failure) return places[0];
      this.forget(topic); // one that does not answer may have it
      throw failure;
    };
    return Promise.any(places.map(ask)).catch(none);
  }
  /** Return the names of all topics, which the leaders of all shards list. */
  async topics() {
    const numbers = Array.from({ length: Number(this.#counts.at(-1)) }, (_, number) => BigInt(number));
    const ofShard = async (number) => {
      const [shard, names] = [await this.#shard(number), []];
      for (let after; after !== null; ) {
        const { topics, next = null } = await shard.ask({ type: "list_topics", after });
        names.push(...topics.map(({ topic }) => topic));
        after = next;
      }
      return names;
    };
    return (await Promise.all(numbers.map(ofShard))).flat().sort();
  }
  async #shard(number) {
    if (!this.failure && !this.#shards.has(number)) {
      this.#shards.set(number, new Shard(this, number));
      await this.#watch(number).catch(() => {}); // disconnected; the next connection subscribes
    }
    const shard = this.#shards.get(number);
    await this.#until(() => shard.window, () => `no leader of shard ${number} answers through broker ${this.#broker}; is a daemon running? headgate status says`);
    return shard;
  }
  async #until(isDone, reason) {
    const until = performance.now() + this.#connectMs;
    while (!this.failure && !isDone() && performance.now() < until) await this.changed.wait(Math.min(1000, until - performance.now()));
    if (this.failure) throw this.failure;
    if (!isDone()) throw new HeadgateError(`not connected within ${this.#connectMs / 1000} s: ${reason()}`);
  }
  /** Publish a request; `onReply` gets the replies to it until it is removed from `replies`. */
  send(shard, body, leader_epoch, onReply) {
    const request_id = ++this.#requestId;
    this.replies.set(request_id, onReply);
    const request = { request_id, client_id: this.clientId, leader_epoch, protocol: PROTOCOL, ledger_id: Buffer.from(this.#ledger ?? "", "hex"), body };
    if (this.session) this.#mqtt.publish(`${this.#prefix}/shards/${shard}/requests/${this.#address}`, encode(request));
    return request_id;
  }
  async close() {
    this.fail(new HeadgateError("the client is closed"));
    for (const shard of this.#shards.values()) shard.close();
    if (this.session) this.#mqtt.publish(this.#presenceTopic, this.#presence(false));
    await this.#mqtt.endAsync();
  }
  /** Do `work`; its error ends the client. */
  guard = (work) => (async () => work())().catch((error) => this.fail(error));
  fail(error) {
    if (!this.failure) this.#onFailure((this.failure = error));
    this.changed.notify();
  }
  #presence = (online) => encode({ client_id: this.clientId, online, incarnation: this.#incarnation });
  async #onConnect(packetBytes = Infinity) {
    this.messageBytes = Math.min(this.messageBytes, packetBytes - 1024); // without the topic
    this.#problem = "it does not accept the subscriptions";
    await this.#mqtt.subscribeAsync(`${this.#prefix}/clients/${this.#address}/replies`, { qos: 1, rh: 2 });
    this.#onSession({});
    this.#mqtt.publish(this.#presenceTopic, this.#presence(true));
    await this.#mqtt.subscribeAsync(`${this.#prefix}/cluster`, { qos: 1 });
    for (const number of this.#shards.keys()) await this.#watch(number);
  }
  #onSession(session) {
    this.session = session;
    for (const shard of this.#shards.values()) shard.onReconnect();
    this.changed.notify();
  }
  async #watch(number) {
    await this.#mqtt.subscribeAsync(`${this.#prefix}/shards/${number}/head`, { qos: 0, rh: 2 });
    await this.#mqtt.subscribeAsync(`${this.#prefix}/shards/${number}/leader`, { qos: 1 });
    this.#shards.get(number).whoLeads();
  }
  /** Any program may be able to publish to a topic: what cannot be read is left out. */
  #onPayload(topic, payload) {
    try {
      this.#onMessage(topic, decode(payload));
    } catch (error) {
      if (error instanceof HeadgateError) throw error;
      warn("message", `a message to ${topic} cannot be read: ${error.message}`);
    }
  }
  #onMessage(topic, message) {
    const [kind, number] = topic.slice(this.#prefix.length + 1).split("/");
    const shard = kind === "shards" ? this.#shards.get(BigInt(number)) : null;
    if (kind === "cluster") this.#ledger ??= message.ledger_id;
    const named = kind === "cluster" ? message.ledger_id : Buffer.from(message.ledger_id ?? []).toString("hex");
    if (named !== this.#ledger) return kind === "cluster" && (this.#other ??= setTimeout(() => this.#use(topic, message), SILENT_MS).unref());
    if (kind === "cluster") this.#other = clearTimeout(this.#other);
    if (kind === "cluster" && message.protocol !== PROTOCOL)
      throw new HeadgateError(`the cluster runs protocol ${message.protocol}, this client ${PROTOCOL}`);
    if (message.shards) this.#learn([...(message.earlier_shards ?? []), message.shards]);
    if (message.body?.shards) this.#learn(message.body.shards);
    if (kind === "cluster") this.cluster = message;
    else if (shard && topic.endsWith("/leader")) shard.onAnnouncement(message);
    else if (shard) shard.onHead(message.head);
    else if (message.type === "part") this.#onPart(topic, message);
    else if (message.type === "reply") this.replies.get(message.request_id)?.(message);
    else if (kind === "clients") this.onPush(message);
    this.changed.notify();
  }
  #use(topic, described) { // another ledger: only a producer, whose sequences its leaders judge
    if (this.#incarnation) return this.fail(new OtherHistoryError(`it began with the ledger ${this.#ledger}, and the cluster has the ledger ${described.ledger_id}: start it again`, "other_history"));
    this.#ledger = this.#places.clear((this.#counts = [])) ?? null;
    this.guard(() => this.#onMessage(topic, described));
  }
  #learn = (counts) => counts.length > this.#counts.length && (this.#counts = counts);
  #onPart(topic, { shard, leader_epoch: epoch, number, index, count, content }) {
    const known = this.#parts.get(`${this.#ledger}/${shard}`);
    if (known && (epoch < known.epoch || (epoch === known.epoch && number < known.number))) return;
    const contents = epoch === known?.epoch && number === known.number ? known.contents : new Map();
    this.#parts.set(`${this.#ledger}/${shard}`, { epoch, number, contents: contents.set(index, content) });
    if (BigInt(contents.size) < count) return;
    const whole = Buffer.concat([...contents].sort(([a], [b]) => Number(a - b)).map(([, part]) => part));
    this.#onMessage(topic, decode(whole));
  }
}
