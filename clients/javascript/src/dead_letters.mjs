// Sends the dead records of a QUEUE, and the parked ones of a STREAM, to their dead-letter topic, each exactly once.
//
// The leader names one consumer as the sender. With the records it stores, as the position of a named producer, when the
// last one died and its number, which rise together. What is not above that position is there already. A topic that
// cannot be written to keeps its records waiting, and the leader learns why from the next heartbeat.
import { createHash, randomBytes } from "node:crypto";
import { decode, encode } from "./encoding.mjs";
import { HeadgateError, warn } from "./errors.mjs";
import { ownerOf, withOrigin } from "./origin.mjs";
import { Producer } from "./producer.mjs";

const SEND_MS = 30_000; // for the records of one reply
const [BATCH_BYTES, BATCH_RECORDS] = [2 ** 20, 50]; // with 80 headers each, they are 4050 of the 5000 that a batch may have

export class DeadLetters {
  problem; // why some could not be sent; undefined: they could
  #producer = null; // while there are records to send
  #places = {}; // segment → where the last one was read, until none is left
  /** `parts`: connection, shard, membership, feed and topic of the consumer, its names, and `broker` for a connection of the producer. */
  constructor(parts) {
    Object.assign(this, parts);
  }
  /** Send what a reply to a heartbeat lists. The next heartbeat lists what follows. */
  async heard({ dead_letters: letters = [], sender_since_ms: incarnation, sender_secret: secret }) {
    if (!letters.length) this.#places = {};
    if (this.#producer || !letters.length) return;
    const digest = createHash("sha256").update(secret).digest("hex").slice(0, 32);
    const name = `${this.#keeper()}-${digest}`;
    const options = { ...this.broker, clientId: undefined, connectTimeoutMs: SEND_MS, deliveryTimeoutMs: SEND_MS, name, incarnation, secret };
    const producer = (this.#producer = new Producer(options));
    const problems = [];
    for (const topic of new Set(letters.map((letter) => letter.topic)))
      await this.#sendTo(producer, topic, letters.filter((letter) => letter.topic === topic)).catch(({ message }) => problems.push(`topic '${topic}': ${message}`));
    await this.close();
    this.problem = problems[0]?.slice(0, 500).toWellFormed();
    if (!this.problem) this.membership.hurry();
  }
  async close() {
    await this.#producer?.close({ timeoutMs: 0 }).catch(() => {});
    this.#producer = null;
  }
  #keeper = () => `dead-letters-${this.shard.number}-${this.membership.subscriptionId}`;
  /** Let retention wait for parked records: the topic may have been created again since the policy was set. */
  async #keep(topic) {
    const created = { type: "create_subscription", topic, subscription: this.#keeper(), subscription_type: "QUEUE", start: "earliest" };
    const shard = await this.connection.shardOf(topic);
    const refusal = await shard.ask({ ...created, if_absent: true, token: randomBytes(16).toString("hex") }).catch((error) => error);
    if (!(refusal instanceof Error)) return;
    this.connection.forget(topic);
    warn("keeper", `nothing keeps the parked records in topic '${topic}': ${refusal.message}`);
  }
  async #sendTo(producer, topic, letters) {
    const position = await producer.sourcePosition(topic);
    if (letters.some((letter) => letter.parked_number)) await this.#keep(topic);
    const [diedAt, number] = position ? decode(position) : [0n, 0n];
    const isSent = (letter) => letter.died_at_ms < diedAt || (letter.died_at_ms === diedAt && letter.number <= number);
    let [batch, bytes] = [[], 0];
    for (const letter of letters.sort((a, b) => Number(a.number - b.number))) {
      if (isSent(letter)) continue;
      const record = await this.#record(letter);
      const size = record.key.length + record.value.length;
      if (batch.length === BATCH_RECORDS || (batch.length && bytes + size > BATCH_BYTES)) [batch, bytes] = [await this.#store(producer, topic, batch), 0];
      batch.push({ letter, record });
      bytes += size;
    }
    if (batch.length) await this.#store(producer, topic, batch);
    await this.membership.ask("confirm_dead_letters", { stored: letters.map((each) => [each.number, each.died_at_ms]) }, true);
  }
  async #store(producer, topic, batch) {
    const { died_at_ms, number } = batch.at(-1).letter;
    const options = { sourcePosition: encode([died_at_ms, number]), reservedHeaders: true };
    await (await producer.send(topic, batch.map(({ record }) => record), options)).stored;
    return [];
  }
  /** Return the record of a letter as it is stored again; it keeps no origin of an earlier death. */
  async #record({ segment, offset, start_chunk: chunk, deliveries, reason, died_at_ms, parked_number: parked = 0n }) {
    const found = await this.feed.readOne(segment, offset, chunk, this.#places);
    if (!found) throw new HeadgateError(`segment ${segment}, offset ${offset} cannot be read at present`);
    const death = { segment, offset, deliveries, reason, "died-at-ms": died_at_ms, ...(parked && { "parked-number": parked }) };
    const { key, value, timestamp_ms: timestampMs, headers } = found;
    return { key, value, timestampMs, headers: withOrigin(headers, { ...ownerOf(this), ...death }) };
  }
}
