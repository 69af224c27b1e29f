// Decides which records a handler gets next, and what can be acknowledged.
//
// Records of one key are handled one after the other, those of different keys in parallel. The low-water mark of a STREAM
// or CHECKPOINT segment is its first record that is not handled: everything below can be acknowledged.
import { bytesIn, keyText } from "./held_segment.mjs";
import { requireCounts, requireMs, withDefaults } from "./options.mjs";

const LOOK_AHEAD = { maxRecords: 10_000, maxBytes: 2 ** 26 }; // beyond the low-water marks, in equal shares for the held segments
const SINGLE = { maxRecords: 1, maxWaitMs: 0 };
const BATCH = { maxRecords: 100, maxWaitMs: 1000 };

export class Schedule {
  unfinished = 0; // records that were added, and are neither handled nor given back
  #keys = new Map(); // text of a key → {waiting, busy}
  #ready = []; // keys whose next record may start, the one that has waited longest first
  #holdings; #cumulative; #batch; #lookAhead;
  /** `batch`: how records are collected for one call of the handler; none: each alone. */
  constructor(holdings, type, { batch, lookAhead = {} } = {}) {
    this.#holdings = holdings;
    this.#cumulative = type !== "QUEUE";
    this.#batch = batch ? withDefaults("run: batch", batch, BATCH) : SINGLE;
    this.#lookAhead = withDefaults("run: lookAhead", lookAhead, LOOK_AHEAD);
    const { maxRecords, maxBytes } = this.#lookAhead;
    requireCounts({ "batch.maxRecords": this.#batch.maxRecords, "lookAhead.maxRecords": maxRecords, "lookAhead.maxBytes": maxBytes });
    requireMs("run: batch.maxWaitMs", this.#batch.maxWaitMs);
  }
  add({ held, record }) {
    const text = keyText(record.key);
    if (!this.#keys.has(text)) this.#keys.set(text, { text, waiting: [], busy: null });
    const key = this.#keys.get(text);
    const passes = this.#cumulative && !record.parkedNumber; // it counts for the low-water mark
    const work = { held, record, key, passes, addedAt: performance.now(), bytes: bytesIn(record) };
    if (key.waiting.push(work) === 1 && !key.busy) this.#ready.push(key);
    if (passes) held.unpassed.push(work);
    this.unfinished++;
    held.ahead++;
    held.aheadBytes += work.bytes;
    held.paused ||= this.#uses(held, 1);
  }
  #uses(held, part) {
    const share = part / Math.max(1, this.#holdings.size);
    return held.ahead >= this.#lookAhead.maxRecords * share || held.aheadBytes >= this.#lookAhead.maxBytes * share;
  }
  /** How long an incomplete batch may wait for more records; 0: it is due; Infinity: there is none. */
  get waitMs() {
    while (this.#ready.length && !this.#ready[0].waiting.length) this.#ready.shift(); // its records were given back
    let records = 0;
    for (const { waiting } of this.#ready) if ((records += waiting.length) >= this.#batch.maxRecords) return 0;
    return records ? Math.max(0, this.#ready[0].waiting[0].addedAt + this.#batch.maxWaitMs - performance.now()) : Infinity;
  }
  /** Return the works that start now, those of a key in order; undefined: none may. `hurried`: they wait for no others. */
  next(hurried) {
    const [waitMs, works] = [this.waitMs, []];
    while ((hurried || !waitMs) && this.#ready.length && works.length < this.#batch.maxRecords) {
      const key = this.#ready.shift();
      if (!key.waiting.length) continue;
      works.push(...key.waiting.splice(0, this.#batch.maxRecords - works.length));
      key.busy = works.at(-1);
    }
    for (const { held, record, passes } of works) if (passes && record.offset > held.lastBegun) held.lastBegun = record.offset;
    return works.length ? works : undefined;
  }
  /** Return the works of a key that wait for the one that was begun; `finish` them before that one. */
  takeWaiting = (key) => key.waiting.splice(0);
  /** End a work; return the last record that can be acknowledged now, if there is one. */
  finish(work) {
    const { held, key } = work;
    this.unfinished--;
    work.done = true;
    if (work === key.busy) {
      key.busy = null;
      if (key.waiting.length) this.#ready.push(key);
      else this.#keys.delete(key.text);
    }
    const passed = work.passes ? this.#pass(held) : [work];
    held.ahead -= passed.length;
    held.aheadBytes -= work.bytes;
    held.paused &&= this.#uses(held, 1 / 2);
    return held.dropped ? undefined : passed.at(-1)?.record;
  }
  /** Move the low-water mark of a segment; return the works that are below it now. */
  #pass(held) {
    const count = held.unpassed.findIndex(({ done }) => !done);
    return held.unpassed.splice(0, count < 0 ? held.unpassed.length : count);
  }
  /** Take back what no handler was called for. With a low-water mark, what is below a record that was begun stays. */
  giveBack(held) {
    const isGiven = (work) => work.held === held && (held.dropped || !work.passes || work.record.offset > held.lastBegun);
    for (const key of [...this.#keys.values()]) {
      const given = key.waiting.filter(isGiven);
      if (!given.length) continue;
      key.waiting = key.waiting.filter((work) => !isGiven(work));
      if (!key.waiting.length && !key.busy) this.#keys.delete(key.text);
      this.unfinished -= given.length;
      held.isGivenBack = true;
      held.ahead -= given.length;
      for (const work of given) {
        const { offset, key: bytes, parkedNumber } = work.record;
        work.isGiven = true;
        held.aheadBytes -= work.bytes;
        held.open.delete(offset);
        if (parkedNumber) held.parkedKey(bytes)?.giveBack(parkedNumber);
        else if (offset < held.delivered) held.delivered = offset;
      }
    }
    held.unpassed = held.unpassed.filter((work) => !work.isGiven);
  }
}
