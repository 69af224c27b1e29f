// Decides which records a handler gets next, and what can be acknowledged.
//
// Records of one key are handled one after the other, those of different keys in parallel. The low-water mark of a STREAM
// or CHECKPOINT segment is its first record that is not handled: everything below can be acknowledged.
import { keyText } from "./held_segment.mjs";

const [AHEAD_RECORDS, AHEAD_BYTES] = [10_000, 2 ** 26]; // beyond the low-water marks, in equal shares for the held segments

export class Schedule {
  unfinished = 0; // records that were added, and are neither handled nor given back
  #keys = new Map(); // text of a key → {waiting, busy}
  #ready = []; // keys whose next record may start, the one that has waited longest first
  #holdings; #cumulative;

  constructor(holdings, type) {
    this.#holdings = holdings;
    this.#cumulative = type !== "QUEUE";
  }
  add({ held, record }) {
    const text = keyText(record.key);
    if (!this.#keys.has(text)) this.#keys.set(text, { text, waiting: [], busy: null });
    const key = this.#keys.get(text);
    const work = { held, record, key, failures: 0, bytes: record.key.length + record.value.length };
    if (key.waiting.push(work) === 1 && !key.busy) this.#ready.push(key);
    if (this.#cumulative) held.unpassed.push(work);
    this.unfinished++;
    held.ahead++;
    held.aheadBytes += work.bytes;
    held.paused ||= this.#uses(held, 1);
  }
  #uses(held, part) {
    const share = part / Math.max(1, this.#holdings.bySegment.size);
    return held.ahead >= AHEAD_RECORDS * share || held.aheadBytes >= AHEAD_BYTES * share;
  }
  /** Return the work that starts now; undefined: none may. */
  next() {
    let key = this.#ready.shift();
    while (key && !key.waiting.length) key = this.#ready.shift(); // its records were given back
    if (!key) return undefined;
    const work = key.waiting.shift();
    key.busy = work;
    if (work.record.offset > work.held.lastBegun) work.held.lastBegun = work.record.offset;
    return work;
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
    let count = held.unpassed.findIndex(({ done }) => !done);
    if (count < 0) count = held.unpassed.length;
    const passed = this.#cumulative ? held.unpassed.splice(0, count).at(-1) : work;
    held.ahead -= this.#cumulative ? count : 1;
    held.aheadBytes -= work.bytes;
    held.paused &&= this.#uses(held, 1 / 2);
    return held.dropped ? undefined : passed?.record;
  }
  /** Take back what no handler was called for. With a low-water mark, what is below a record that was begun stays. */
  giveBack(held) {
    const isGiven = (work) => work.held === held && (held.dropped || !this.#cumulative || work.record.offset > held.lastBegun);
    for (const key of [...this.#keys.values()]) {
      const given = key.waiting.filter(isGiven);
      if (!given.length) continue;
      key.waiting = key.waiting.filter((work) => !isGiven(work));
      if (!key.waiting.length && !key.busy) this.#keys.delete(key.text);
      this.unfinished -= given.length;
      held.ahead -= given.length;
      for (const work of given) {
        work.isGiven = true;
        held.aheadBytes -= work.bytes;
        held.open.delete(work.record.offset);
        if (work.record.offset < held.delivered) held.delivered = work.record.offset;
      }
    }
    held.unpassed = held.unpassed.filter((work) => !work.isGiven);
  }
}
