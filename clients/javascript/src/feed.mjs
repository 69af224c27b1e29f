// Reads the records of held segments: one reader per segment, and one bounded queue for all.
import { HeadgateError, StoreUnavailableError, warn } from "./errors.mjs";
import { Signal, sleep } from "./waiting.mjs";

const QUEUE_RECORDS = 1000; // most records that are queued for the program
const CACHED_CHUNKS = 8;
const POLL_MS = 1000; // between two attempts to read a chunk that is not known to exist
const MISSING_MS = 60_000; // how long a chunk that a leader has stated may be missing

export class Feed {
  space = new Signal(); // a reader may continue, or has to end
  newestMs; // timestamp of the record that was taken last
  onSkipped = () => {}; // gets the holding of a range, the first of the records that were not delivered last, and the end of what is read
  onParked = () => {}; // gets the holding and a record that its acknowledgement parks
  #queue = []; // {held, record}
  #chunks = new Map(); // number → promise of its rows by segment, or of null
  #absent = { number: -1n, at: 0 }; // the last attempt to read beyond the known head
  #isEnding = false; // read nothing more

  /** `parts`: connection, ledger, membership, history, topic and counts of the consumer. */
  constructor(parts) { Object.assign(this, parts); }
  /** Return whether records of a segment are still to be queued. */
  reads = (held) => held.isReadable && !this.#isEnding;
  end = () => this.space.notify((this.#isEnding = true));

  /** Return the age of the newest record that was delivered, or how long ago everything was; 0: everything is. */
  lagMs(all) {
    const isBehind = ({ queued, isAtEnd, chunk }) => queued || !(isAtEnd || chunk > this.membership.head);
    const since = ({ queued, atEndMs }) => Math.max(Number(this.newestMs ?? -Infinity), queued ? -Infinity : atEndMs);
    return Math.max(0, ...all.filter(isBehind).map((held) => Date.now() - since(held)));
  }
  /** Read a segment until it ends, or is revoked. */
  async read(held) {
    let missingSince = 0;
    while (this.reads(held) && !held.isAtEnd) {
      const number = held.chunk;
      if (number > this.membership.head) held.atEndMs = Date.now();
      const isProven = number <= this.membership.provenHead;
      const wasRead = await this.#readChunk(held).catch((error) => this.tolerate(error));
      this.#reportSkipped(held);
      if (wasRead) missingSince = 0;
      else if (wasRead === null) await sleep(POLL_MS);
      else if (number > this.membership.head) await this.connection.changed.wait(POLL_MS);
      else if (!isProven) this.membership.head = number - 1n; // an announcement may be forged
      else if (performance.now() - (missingSince ||= performance.now()) < MISSING_MS) await this.connection.changed.wait(POLL_MS);
      else throw new HeadgateError(`chunk ${number} is missing, and no manifest includes it`);
    }
  }
  /**
   * Return the record at `offset`, which is in chunk `number` or later; null: it cannot be read at present. `places`
   * keeps where each segment was read: offsets that rise continue there.
   */
  async readOne(segment, offset, number, places = {}) {
    const place = (places[segment] ??= {});
    const isHere = (row) => row.fact === "record" && row.offset === offset;
    const known = place.offset < offset ? place : { number, rows: [] };
    if (known.rows.some(isHere)) return known.rows.find(isHere);
    for (let at = known.number > number ? known.number : number; at <= this.membership.head; at++) {
      const chunk = await this.#chunk(at);
      const range = chunk ? null : await this.#compacted(at, segment, offset, offset + 1n);
      const rows = chunk?.bySegment.get(segment) ?? range?.rows ?? [];
      const found = rows.find(isHere);
      if (found) return Object.assign(place, { offset, number: at, rows }) && found;
      if (range) at = range.last;
    }
    return null;
  }
  /** Return the next entry of the queue, {held, record}; undefined: there is none. */
  take() {
    for (let entry; (entry = this.#queue.shift()); ) {
      if (!this.#queue.length || this.#queue.length === QUEUE_RECORDS / 2) this.space.notify();
      if (!this.#isForProgram(entry)) continue;
      this.counts.deliveredRecords++;
      if (entry.record.deliveryCount > 1) this.counts.redeliveredRecords++;
      this.newestMs = entry.record.timestampMs;
      return entry;
    }
  }
  /** Note that a record has left the queue; return whether the program gets it. Its key may have been parked meanwhile. */
  #isForProgram({ held, record }) {
    const { offset, key, parkedNumber } = record;
    const parked = held.parkedKey(key);
    if (!parkedNumber) {
      held.queued--;
      held.takenEnd = offset + 1n;
    }
    if (!held.isReadable) return false;
    if (parkedNumber) return parked?.takes(parkedNumber) ?? false;
    if (parked) this.onParked(held, record);
    return !parked;
  }
  /** Queue a row for the program, once there is space. `again`: it was delivered before. `parkedNumber`: of a resumed one. */
  async put(held, row, { deliveryCount = 1, again = deliveryCount > 1, parkedNumber = 0n } = {}) {
    const isFull = () => this.#queue.length >= QUEUE_RECORDS || (!again && !parkedNumber && (held.isFull || held.paused));
    while (isFull() && this.reads(held)) await this.space.wait(POLL_MS);
    if (!this.reads(held)) return;
    const { offset, key, value, timestamp_ms: timestampMs, headers } = row;
    const about = { topic: this.topic, segment: held.segment, generation: held.generation, deliveryCount, parkedNumber };
    const record = { ...about, offset, key, value, timestampMs, headers: headers ?? [] };
    this.#queue.push({ held, record });
    if (!parkedNumber) {
      held.queued++;
      held.queuedEnd = offset + 1n;
    }
    this.connection.changed.notify();
  }
  /** Deliver what the next chunk of a segment has; return whether there was one. */
  async #readChunk(held) {
    const number = held.chunk;
    const chunk = await this.#chunk(number);
    if (!chunk && number > this.membership.head) return false; // it is not written yet
    if (chunk) this.history.add(number, chunk.term_id, chunk.previous_term_id);
    const range = chunk ? null : await this.#compacted(number, held.segment, held.next);
    if (!chunk && !range) return false;
    for (const row of range?.rows ?? chunk.bySegment.get(held.segment) ?? []) await this.#deliver(held, row, number);
    held.chunk = (range?.last ?? number) + 1n;
    return true;
  }
  #compacted(number, segment, offset, end = Infinity) {
    const isWanted = (item) =>
      item.topic_id === this.membership.topicId && item.segment === segment && item.end_offset > offset && item.first_offset < end;
    return this.ledger.compacted(number, isWanted);
  }
  /** Return null if it is worth reading again later: the consumer waits until its store is back. */
  tolerate(error) {
    if (!(error instanceof StoreUnavailableError)) throw error;
    warn("store", error.message);
    return null;
  }
  async #chunk(number) {
    const isKnown = number <= this.membership.head;
    if (!isKnown && number === this.#absent.number && performance.now() < this.#absent.at + POLL_MS) return null;
    if (!this.#chunks.has(number)) this.#chunks.set(number, this.#load(number));
    this.#chunks.get(number).catch(() => this.#chunks.delete(number)); // it is read again
    const chunk = await this.#chunks.get(number);
    if (!chunk) this.#chunks.delete(number);
    if (!chunk && !isKnown) this.#absent = { number, at: performance.now() };
    for (const oldest of this.#chunks.keys()) if (this.#chunks.size > CACHED_CHUNKS) this.#chunks.delete(oldest);
    return chunk;
  }
  async #load(number) {
    const chunk = await this.ledger.chunk(number);
    const bySegment = new Map();
    for (const row of (chunk?.rows ?? []).filter(({ topic_id }) => topic_id === this.membership.topicId))
      if (!bySegment.get(row.segment)?.push(row)) bySegment.set(row.segment, [row]);
    return chunk && { term_id: chunk.term_id, previous_term_id: chunk.previous_term_id, bySegment };
  }
  async #deliver(held, row, number) {
    const { fact, offset, end_offset, key } = row;
    if (fact === "sealed") held.end = end_offset;
    if (fact !== "record" || offset < held.next || !this.reads(held)) return;
    if (offset > held.next) throw new HeadgateError(`segment ${held.segment}: offset ${offset} follows ${held.next - 1n} in chunk ${number}`);
    if (held.skips(offset, key)) {
      if (held.checksKeys) held.skippedFrom ??= offset;
      held.next = offset + 1n;
      return;
    }
    this.#reportSkipped(held);
    const isParked = await this.#isParked(held, key);
    if (!isParked && !held.failed.has(offset)) await this.put(held, row);
    if (!this.reads(held)) return;
    held.next = offset + 1n;
    if (isParked) this.onParked(held, row);
  }
  #reportSkipped(held) {
    if (held.checksKeys && this.reads(held)) this.onSkipped(held, held.skippedFrom ?? held.next, held.next);
    held.skippedFrom = null;
  }
  /** Return whether a record is parked; wait while its key is about to be parked no more, or no more can be parked. */
  async #isParked(held, key) {
    const waits = (state) => state && (state.isHeld || held.isFull) && this.reads(held);
    while (waits(held.parkedKey(key))) await this.space.wait(POLL_MS);
    return held.parkedKey(key) !== undefined;
  }
}
