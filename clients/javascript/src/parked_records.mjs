// The parked records of a subscription, as its dead-letter topic has them.
//
// A pass over the topic keeps the records of all keys that are parked then, and the next one continues behind it: keys
// that are resumed after each other read each object once. What is kept is of one history of one topic, and both are
// compared before it is used. If it lacks a record, the topic is read from its beginning. Beyond `KEPT_BYTES` only the
// records are kept that are asked for.
import { bytesIn, keyText } from "./held_segment.mjs";
import { ownerOf, parkedNumberOf } from "./origin.mjs";
import { TopicReading } from "./topic_reading.mjs";

const [KEPT_BYTES, OVERHEAD_BYTES] = [32 * 2 ** 20, 200]; // the second one: of a record in memory

export class ParkedRecords {
  #reading = null;
  #records = new Map(); // text of a key → Map: number → row that was found and not taken
  #newest = new Map(); // text of a key → its highest number, also of what is not kept
  #freeBytes = 0;
  /** `parts`: connection, ledger and membership of the consumer, and its names. */
  constructor(parts) {
    Object.assign(this, parts);
  }
  /**
   * Return {found, newest}: [number, row] of those records of a key from `first` to `last` that the topic has, in order,
   * and the newest number of the key. `parked`: texts of the keys whose records to keep.
   */
  async take(topic, key, first, last, parked) {
    const shard = await this.connection.shardOf(topic);
    const { topic: described } = await shard.ask({ type: "describe_topic", topic }).catch((error) => { this.connection.forget(topic); throw error; });
    const wanted = { text: keyText(key), first, last };
    const known = this.#reading;
    this.#reading = null; // after an error, nothing that is kept is used
    const isUsable = known && this.#records.has(wanted.text) && (await known.isOf(described.topic_id));
    if (isUsable) await this.#read(known, described, wanted);
    this.#reading = isUsable && this.#hasAll(wanted) ? known : await this.#readFromBeginning(shard, described, wanted, parked);
    const ofKey = this.#records.get(wanted.text);
    const found = [...ofKey].filter(([number]) => first <= number && number <= last).sort(([a], [b]) => (a < b ? -1 : 1));
    for (const [number] of found) ofKey.delete(number);
    return { found, newest: this.#newest.get(wanted.text) ?? 0n };
  }
  async #readFromBeginning(shard, described, wanted, parked) {
    this.#records = new Map([wanted.text, ...parked].map((text) => [text, new Map()]));
    this.#newest.clear();
    this.#freeBytes = KEPT_BYTES;
    const reading = new TopicReading(this.ledger.ofShard(shard.number), described.topic_id);
    await this.#read(reading, described, wanted);
    return reading;
  }
  async #read(reading, { segments }, wanted) {
    const owner = ownerOf(this);
    for await (const row of reading.rows(segments)) {
      const text = keyText(row.key);
      const number = this.#records.has(text) ? parkedNumberOf(row.headers, owner) : 0n;
      if (number) this.#keep(row, text, number, wanted);
    }
  }
  /** Of two records with one number the later one counts: the first one may be of a history that was lost. */
  #keep(row, text, number, wanted) {
    if (number > (this.#newest.get(text) ?? 0n)) this.#newest.set(text, number);
    const isWanted = (of, each) => of === wanted.text && wanted.first <= each && each <= wanted.last;
    const hadSpace = this.#freeBytes >= 0;
    if (hadSpace || isWanted(text, number)) this.#records.get(text).set(number, row);
    this.#freeBytes -= OVERHEAD_BYTES + bytesIn(row);
    if (!hadSpace || this.#freeBytes >= 0) return;
    const own = [...this.#records.get(wanted.text)].filter(([each]) => isWanted(wanted.text, each));
    this.#records = new Map([[wanted.text, new Map(own)]]);
  }
  #hasAll({ text, first, last }) {
    const ofKey = this.#records.get(text);
    for (let number = first; number <= last; number++) if (!ofKey.has(number)) return false;
    return true;
  }
}
