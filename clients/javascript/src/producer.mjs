// A producer, written from docs/protocol.md alone. It delivers exactly once and in the order of each key.
// It has one identity on each shard that it writes to. With a name, its position in a source survives its program.
import { Connection } from "./connection.mjs";
import { bytesOf } from "./encoding.mjs";
import { DeliveryFailedError, HeadgateError, warn } from "./errors.mjs";
import { requireArray, requireBroker, requireFunction, requireMs, requireOptions, requireText, timeOf } from "./options.mjs";
import { Outcome } from "./outcome.mjs";
import { ProducerSession } from "./producer_session.mjs";
import { explained } from "./unknown_names.mjs";
import { Signal } from "./waiting.mjs";

const CHECK_MS = 1000;
const MOST_KEPT = 1000; // failures, for `close`
const MOST_RECORDS = 5000; // and headers, in a batch: the leader refuses more

export class Producer {
  #connection;
  #failure = null; #closing = null; // promise of the first `close`
  #sessions = new Map(); // shard → ProducerSession
  #changed = new Signal();
  #named; #deliveryMs; #onFailure;
  #unsettled = 0; // batches whose outcome the program cannot know yet
  #failed = []; // {outcome, topic, error} of batches whose outcome was not asked for when they failed
  #stored = new Set(); // topics that have stored a batch
  #topicIds = new Map(); // topic → its id, once its source position is known
  #turns = new Map(); // topic → promise that ends once its newest batch is queued, or never will be: batches keep the order of `send`
  /** `incarnation` of a `name` rises with each start: the highest one holds the name, and fences the others. */
  constructor(options) {
    requireOptions("new Producer", options);
    const { name, incarnation = Date.now(), secret, deliveryTimeoutMs = 120_000, onFailure, ...broker } = options;
    requireBroker("new Producer", broker);
    if (name === undefined && options.incarnation !== undefined) throw new HeadgateError("incarnation: only for a producer with a name");
    this.#named = name === undefined ? {} : { name, incarnation: timeOf("incarnation", incarnation), secret };
    this.#deliveryMs = requireMs("deliveryTimeoutMs", deliveryTimeoutMs);
    if (onFailure) requireFunction("onFailure", onFailure);
    this.#onFailure = onFailure;
    this.#connection = new Connection(broker, { onFailure: (error) => this.#end(error) });
  }
  /** Batches that were sent again. */
  get resent() { return [...this.#sessions.values()].reduce((sum, { resent }) => sum + resent, 0); }
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
    const session = await this.#session(topic);
    session.closeGap(topic);
    const shard = await this.#connection.shardOf(topic);
    const question = { type: "describe_position", producer: name, topic };
    const { topic_id, position = null } = await shard.ask(question).catch((error) => this.#explain(topic, error));
    this.#topicIds.set(topic, topic_id);
    session.continueAt(topic, position);
    return position;
  }
  /**
   * Queue a batch for one topic, 4 MiB and 5000 records and headers at most, once there is space. `stored` resolves when
   * it is durable, and rejects `deliveryTimeoutMs` after this call at the latest. `sourcePosition`: stored with it, up to 1 KiB.
   * `onFailure` of the producer is called for each batch that fails. Without it, `close` throws if nothing asked for `stored`.
   */
  async send(topic, records, { sourcePosition, reservedHeaders } = {}) {
    requireText("send: topic", topic);
    requireArray("send: records", records);
    for (const record of records) requireArray("headers", requireOptions("send: record", record) ?? record.headers ?? []);
    const deadline = performance.now() + this.#deliveryMs;
    const topicId = this.#topicIds.get(topic);
    const position = sourcePosition == null ? null : bytesOf(sourcePosition, "sourcePosition");
    if (position && topicId === undefined) throw new HeadgateError("send: await sourcePosition(topic) before the first batch with a position");
    const now = Date.now();
    const rows = records.map(({ key, value, timestampMs = now }) => [bytesOf(key, "key"), bytesOf(value, "value"), timeOf("timestampMs", timestampMs)]);
    const headers = records.flatMap(({ headers: own = [] }, index) => own.map(({ name, value }) => [index, name, bytesOf(value, "header")]));
    const bytesOfHeaders = headers.reduce((sum, [, name, value]) => sum + Buffer.byteLength(name) + value.length + 24, 1024);
    const bytes = rows.reduce((sum, [key, value]) => sum + key.length + value.length + 24, bytesOfHeaders); // or a few less
    const count = rows.length + headers.length;
    if (count > MOST_RECORDS) throw new DeliveryFailedError(`a batch of ${count} records and headers is above the limit of ${MOST_RECORDS}: send it in parts`);
    const body = { type: "produce", topic, records: rows, headers, reserved_headers: reservedHeaders, ...(position && { source_position: position, topic_id: topicId }) };
    const [earlier, ready] = [this.#turns.get(topic), this.#session(topic)];
    const queued = Promise.all([ready, earlier]).then(([session]) => this.#queue(session, body, bytes, deadline));
    this.#turns.set(topic, Promise.allSettled([earlier, queued]).then(() => {}));
    return queued;
  }
  async #queue(session, body, bytes, deadline) {
    const [{ topic }, { messageBytes }] = [body, this.#connection];
    if (bytes > messageBytes) throw new DeliveryFailedError(`a batch of ${bytes} bytes is larger than a message, ${messageBytes}: send it in parts`);
    if (!(await this.#until(() => session.hasSpace, deadline))) throw new DeliveryFailedError(`not sent within ${this.#deliveryMs / 1000} s`);
    const offered = session.offer(body, deadline);
    this.#unsettled++;
    const settled = offered.then((value) => this.#stored.add(topic) && value, (error) => this.#explain(topic, error, deadline));
    const stored = new Outcome((resolve) => resolve(settled.finally(() => this.#changed.notify(this.#unsettled--))));
    stored.onFailure((error) => this.#noteFailure(stored, topic, error));
    return { stored };
  }
  /** Throw the best error there is. */
  async #explain(topic, error, deadline = Infinity) {
    this.#connection.forget(topic);
    throw this.#stored.has(topic) ? error : await explained(this.#connection, topic, error, deadline);
  }
  #noteFailure(outcome, topic, error) {
    if (this.#onFailure) return this.#onFailure(error, topic);
    if (outcome.isAwaited) return;
    warn("batch", `a batch for topic '${topic}' failed, and nothing awaits its outcome: ${error.message}`);
    if (this.#failed.length < MOST_KEPT) this.#failed.push({ outcome, topic, error });
  }
  /** Wait until every batch has its outcome, for `timeoutMs` at most, and disconnect. Throws failures that nothing has awaited. A later call ends with the first one. */
  async close(options) { requireMs("close: timeoutMs", options?.timeoutMs ?? 0); await (this.#closing?.catch(() => {}) ?? (this.#closing = this.#close(options))); } // who called first has the error
  async #close({ timeoutMs = Infinity } = {}) {
    try {
      const isDone = await this.#until(() => this.#unsettled === 0, performance.now() + timeoutMs);
      if (!isDone) throw new HeadgateError(`${this.#unsettled} batches have no outcome after ${timeoutMs / 1000} s`);
    } finally {
      this.#end(new HeadgateError("the producer is closed"));
      await this.#connection.close();
    }
    const silent = this.#failed.splice(0).filter(({ outcome }) => !outcome.isAwaited);
    if (!silent.length) return;
    const [{ topic, error: cause }] = silent;
    const text = `${silent.length} batches failed, and nothing has awaited their outcomes; the first one, for topic '${topic}': ${cause.message}`;
    throw Object.assign(new HeadgateError(text, cause.verdict), { cause });
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
