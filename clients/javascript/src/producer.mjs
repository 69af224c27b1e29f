// A producer, written from docs/protocol.md alone. It delivers exactly once and in the order of each key.
//
// It has one identity on each shard that it writes to. It has no deadlines, and no name that survives a restart.
import { Connection } from "./connection.mjs";
import { DeliveryFailedError, HeadgateError } from "./errors.mjs";
import { ProducerSession } from "./producer_session.mjs";
import { Signal } from "./waiting.mjs";

const CHECK_MS = 1000;
const MESSAGE_BYTES = 4_194_304; // a broker disconnects who sends more

export class Producer {
  #connection;
  #failure = null;
  #sessions = new Map(); // shard → ProducerSession
  #changed = new Signal();
  constructor(broker) {
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
  /** Queue a batch for one topic, 4 MiB at most, once there is space. `stored` resolves when the batch is durable. */
  async send(topic, records) {
    const now = Date.now();
    const rows = records.map(({ key, value, timestampMs = now }) => [key, value, BigInt(timestampMs)]);
    const headers = records.flatMap(({ headers: own = [] }, index) => own.map(({ name, value }) => [index, name, value]));
    const bytesOfHeaders = headers.reduce((sum, [, name, value]) => sum + Buffer.byteLength(name) + value.length + 24, 1024);
    const bytes = rows.reduce((sum, [key, value]) => sum + key.length + value.length + 24, bytesOfHeaders); // or a few less
    if (bytes > MESSAGE_BYTES) throw new DeliveryFailedError(`a batch of ${bytes} bytes is larger than a message, ${MESSAGE_BYTES}: send it in parts`);
    const session = await this.#session(topic);
    await this.#until(() => session.hasSpace);
    const stored = session.offer({ type: "produce", topic, records: rows, headers });
    stored.catch(() => this.#connection.forget(topic)); // the caller sees the error if it awaits `stored`
    return { stored };
  }
  /** Wait until every batch has its outcome, and disconnect. */
  async close() {
    try {
      await this.#until(() => [...this.#sessions.values()].every(({ unanswered }) => unanswered === 0));
    } finally {
      this.#end(new HeadgateError("the producer is closed"));
      await this.#connection.close();
    }
  }
  async #session(topic) {
    const shard = await this.#connection.shardOf(topic);
    if (!this.#sessions.has(shard))
      this.#sessions.set(shard, new ProducerSession(shard, () => this.#changed.notify(), (error) => this.#end(error)));
    return this.#sessions.get(shard);
  }
  async #until(isDone) {
    while (!this.#failure && !isDone()) await this.#changed.wait(CHECK_MS);
    if (this.#failure) throw this.#failure;
  }
  #end(error) {
    this.#failure ??= error;
    for (const session of this.#sessions.values()) session.end(error);
    this.#changed.notify();
  }
}
