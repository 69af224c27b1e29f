// A producer, written from docs/protocol.md alone. It delivers exactly once and in the order of each key.
// It has one identity on each shard that it writes to. With a name, its position in a source survives its program.
import { Connection } from "./connection.mjs";
import { bytesOf } from "./encoding.mjs";
import { DeliveryFailedError, HeadgateError } from "./errors.mjs";
import { requireArray, requireOptions, requireText, timestampOf } from "./options.mjs";
import { ProducerSession } from "./producer_session.mjs";
import { Signal } from "./waiting.mjs";

const CHECK_MS = 1000;

export class Producer {
  #connection;
  #failure = null;
  #sessions = new Map(); // shard → ProducerSession
  #changed = new Signal();
  #named; #deliveryMs;
  #topicIds = new Map(); // topic → its id, once its source position is known
  /** `incarnation` of a `name` rises with each start: the highest one holds the name, and fences the others. */
  constructor(options) {
    requireOptions("new Producer", options);
    const { name, incarnation = Date.now(), secret, deliveryTimeoutMs = 120_000, ...broker } = options;
    this.#named = name === undefined ? {} : { name, incarnation: BigInt(incarnation), secret };
    this.#deliveryMs = deliveryTimeoutMs;
    this.#connection = new Connection(broker, { onFailure: (error) => this.#end(error) });
  }
  /** Batches that were sent again. */
  get resent() {
    return [...this.#sessions.values()].reduce((sum, { resent }) => sum + resent, 0);
  }
  /** Wait for the leader of each topic, and open an identity there. `send` does the same when it has to. */
  async open(...topics) {
    for (const topic of topics) {
      const session = await this.#session(topic);
      session.open();
      await this.#until(() => session.isOpen);
    }
  }
  /** Return what a named producer has stored with its last durable batch of a topic; null: nothing. */
  async sourcePosition(topic) {
    const { name } = this.#named;
    if (!name) throw new HeadgateError("sourcePosition: only of a producer with a name");
    await this.open(topic);
    (await this.#session(topic)).closeGap(topic);
    const shard = await this.#connection.shardOf(topic);
    const { topic_id, position = null } = await shard.ask({ type: "describe_position", producer: name, topic });
    this.#topicIds.set(topic, topic_id);
    return position;
  }
  /**
   * Queue a batch for one topic, 4 MiB at most, once there is space. `stored` resolves when the batch is durable, and
   * rejects `deliveryTimeoutMs` after this call at the latest. `sourcePosition`: stored with it, up to 1024 bytes.
   */
  async send(topic, records, { sourcePosition, reservedHeaders } = {}) {
    requireText("send: topic", topic);
    requireArray("send: records", records);
    const deadline = performance.now() + this.#deliveryMs;
    const topicId = this.#topicIds.get(topic);
    if (sourcePosition && topicId === undefined) throw new HeadgateError("send: await sourcePosition(topic) before the first batch with a position");
    const now = Date.now();
    const rows = records.map(({ key, value, timestampMs = now }) => [bytesOf(key, "key"), bytesOf(value, "value"), timestampOf(timestampMs)]);
    for (const { headers = [] } of records) requireArray("headers", headers);
    const headers = records.flatMap(({ headers: own = [] }, index) => own.map(({ name, value }) => [index, name, bytesOf(value, "header")]));
    const bytesOfHeaders = headers.reduce((sum, [, name, value]) => sum + Buffer.byteLength(name) + value.length + 24, 1024);
    const bytes = rows.reduce((sum, [key, value]) => sum + key.length + value.length + 24, bytesOfHeaders); // or a few less
    const session = await this.#session(topic);
    const { messageBytes } = this.#connection;
    if (bytes > messageBytes) throw new DeliveryFailedError(`a batch of ${bytes} bytes is larger than a message, ${messageBytes}: send it in parts`);
    if (!(await this.#until(() => session.hasSpace, deadline))) throw new DeliveryFailedError(`not sent within ${this.#deliveryMs / 1000} s`);
    const position = sourcePosition && { source_position: sourcePosition, topic_id: topicId };
    const stored = session.offer({ type: "produce", topic, records: rows, headers, reserved_headers: reservedHeaders, ...position }, deadline);
    stored.catch(() => this.#connection.forget(topic)); // the caller sees the error if it awaits `stored`
    return { stored };
  }
  /** Wait until every batch has its outcome, for `timeoutMs` at most, and disconnect. */
  async close({ timeoutMs = Infinity } = {}) {
    const unanswered = () => [...this.#sessions.values()].reduce((sum, session) => sum + session.unanswered, 0);
    try {
      const isDone = await this.#until(() => unanswered() === 0, performance.now() + timeoutMs);
      if (!isDone) throw new HeadgateError(`${unanswered()} batches have no outcome after ${timeoutMs / 1000} s`);
    } finally {
      this.#end(new HeadgateError("the producer is closed"));
      await this.#connection.close();
    }
  }
  async #session(topic) {
    const shard = await this.#connection.shardOf(topic);
    if (!this.#sessions.has(shard))
      this.#sessions.set(shard, new ProducerSession(shard, this.#named, () => this.#changed.notify(), (error) => this.#end(error)));
    return this.#sessions.get(shard);
  }
  async #until(isDone, until = Infinity) {
    while (!this.#failure && !isDone() && performance.now() < until) await this.#changed.wait(Math.min(CHECK_MS, until - performance.now()));
    if (this.#failure) throw this.#failure;
    return isDone();
  }
  #end(error) {
    this.#failure ??= error;
    for (const session of this.#sessions.values()) session.end(error);
    this.#changed.notify();
  }
}
