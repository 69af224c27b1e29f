// Resumes the parked keys that the leader names with its heartbeats: delivers their records, and ends the parking.
//
// 1. A key that is resumed stays parked while its records are read from the dead-letter topic and delivered, in the order
//    of their numbers.
// 2. Once those that are stored were delivered, the consumer holds the key: its next record waits, and its segment with
//    it. So a key that gets records all the time catches up. While the topic takes no further records, it is not held.
// 3. When no record of the key is parked, queued or unacknowledged any more, the leader ends the parking, and the record
//    that waits is delivered.
// 4. What fails is tried again after the next heartbeat.
// 5. Without an order, the holder of a parent may park a key of a child that is held. The child learns it here.
import { HeadgateError, warn } from "./errors.mjs";
import { keyText } from "./held_segment.mjs";
import { ParkedRecords } from "./parked_records.mjs";

const HOLD_MS = 10_000; // how long a key is held for records that the topic does not have, after it last had further ones
const TURN_RECORDS = 1000n; // of one key, that are queued before it is another key's turn
const ENDING = ["fenced", "other_history"]; // verdicts that end the consumer
/** Return a ResumingKey of the protocol by names. */
const asNamed = ([segment, generation, key, parking, topic, number, last, stored]) => ({ segment, generation, key, parking, topic, number, last, stored });

export class Resumption {
  #newest = new Map(); // state of a key → {held, state, named}: what the leader said last, and is to be done
  #isAtWork = false;
  #unparkedAt = -Infinity; // when a key was last parked no more: what the leader said earlier is outdated
  /** `parts`: connection, ledger, membership, holdings and feed of the consumer, and its names. */
  constructor(parts) {
    Object.assign(this, parts, { records: new ParkedRecords(parts) });
  }
  /** Follow the reply to a heartbeat that was sent at `askedAt`. */
  async heard({ resuming = [] }, askedAt) {
    const going = new Set(resuming.map(asNamed).map(this.#stateOf));
    for (const { parkedKeys } of this.holdings.all) // what is named no more has ended by another holder: without an order there may be one
      for (const [text, state] of parkedKeys) if (state.isResuming && !going.has(state)) parkedKeys.set(text, state.end());
    this.feed.space.notify();
    for (const named of resuming.map(asNamed)) {
      const held = this.holdings.of(named);
      if (!held || !this.feed.reads(held)) continue;
      const isNew = askedAt > this.#unparkedAt && !held.parking.has(keyText(named.key));
      const state = held.parkedKey(named.key) ?? (isNew && held.addParkedKey(named.key, -Infinity));
      if (!state || state.parkedAt >= askedAt) continue;
      state.resume(named.number);
      this.#newest.set(state, { held, state, named });
    }
    if (this.#isAtWork) return;
    this.#isAtWork = true;
    while (this.#newest.size) {
      const [[state, each]] = this.#newest;
      this.#newest.delete(state);
      const isToContinue = await this.#attempt(each);
      if (isToContinue && !this.#newest.has(state)) this.#newest.set(state, each); // after the others
    }
    this.#isAtWork = false;
  }
  /** Return whether a reply names a key that is resumed without a problem. */
  isUnderWay({ resuming = [] }) {
    return resuming.map(asNamed).some((named) => !this.#stateOf(named)?.problem);
  }
  #stateOf = (named) => this.holdings.of(named)?.parkedKey(named.key);

  /** Take the next step; return whether there is more to do now. */
  async #attempt(each) {
    const { state, named } = each;
    try {
      const isToContinue = await this.#step(each);
      state.problem = null;
      return isToContinue;
    } catch (error) {
      if (this.connection.failure) return false;
      if (!(error instanceof HeadgateError) || ENDING.includes(error.verdict)) throw error;
      state.problem = error.message;
      warn("key", `key ${JSON.stringify(Buffer.from(named.key).toString())} is not resumed at present: ${error.message}`);
      return false;
    }
  }
  async #step({ held, state, named }) {
    const { stored, last, number, key } = named;
    const hasNew = stored > state.queued;
    if (hasNew && !held.paused) await this.#deliver(held, state, named);
    if (!this.#continues(held, state)) return false;
    if (stored > state.queued) return !held.paused;
    if (hasNew || last === state.queued) state.storedAt = performance.now();
    const isHeld = performance.now() < state.storedAt + HOLD_MS;
    if (isHeld !== state.isHeld) {
      state.isHeld = isHeld;
      this.feed.space.notify();
    } else if (isHeld && number === last && last === state.queued && held.takenEnd >= state.queuedEnd && !held.hasUnstoredParked(key))
      await this.#unpark(held, state, named);
    return false;
  }
  #continues = (held, state) => state.isResuming && this.feed.reads(held);
  /** Rule 3. */
  async #unpark(held, state, { segment, generation, key, parking, last }) {
    await this.membership.ask("unpark_key", { segment, generation, key, parking, last }, true);
    this.#unparkedAt = performance.now();
    held.parkedKeys.delete(keyText(key));
    state.end();
    this.feed.space.notify();
  }
  async #deliver(held, state, named) {
    const { topic, key, stored } = named;
    const end = stored < state.queued + TURN_RECORDS ? stored : state.queued + TURN_RECORDS;
    const parked = this.holdings.all.flatMap(({ parkedKeys }) => [...parkedKeys.keys()]);
    const { found, newest } = await this.records.take(topic, key, state.queued + 1n, end, parked);
    for (const [number, row] of found) {
      if (!this.#continues(held, state)) return;
      if (number <= state.queued) continue; // a command has dropped it
      this.#passOver(state, number - 1n, newest, named);
      state.expect(number);
      await this.feed.put(held, row, { parkedNumber: number });
    }
    if (this.#continues(held, state)) this.#passOver(state, end, newest, named);
  }
  /**
   * Pass over records up to number `end` that the topic has lost, if others are behind them. If none are, the leader
   * may have been deposed since, and have described the topic without its newest records.
   */
  #passOver(state, end, newest, { topic, stored }) {
    const missing = end - state.queued;
    if (missing <= 0n) return;
    const text = `${missing} parked records are not in topic '${topic}'`;
    if ((newest < stored ? newest : stored) <= end) throw new HeadgateError(`${text}: if it has lost them, drop the key`);
    warn("parked records", `${text}, which has later ones: they are passed over`);
    state.queued = end;
  }
}
