// Sends acknowledgements to the leader, and keeps each until it is stored.
//
// They are collected for a short interval. One request is in flight at a time. What is refused is sent again after a
// pause, while its segment is held: a right may be given back, and a QUEUE at a limit accepts more once gaps are filled.
import { AcknowledgementsNotStoredError } from "./errors.mjs";
import { keyText } from "./held_segment.mjs";
import { Signal, jittered } from "./waiting.mjs";

const INTERVAL_MS = 100;
const MOST = 1000; // of one request; so many are sent at once
const [FIRST_PAUSE_MS, LONGEST_PAUSE_MS] = [100, 5000];

export class Acknowledger {
  onFailed = () => {}; // gets (held, redeliveries) of negative acknowledgements that are stored
  #changed = new Signal();
  #since = 0; // when the oldest item that is not sent was added; 0: there is none
  #retryAt = Infinity; // when the first one that was refused is sent again
  #isHurried = false;
  #requested = 0; // requests that were sent
  #added = 0; // items since the last request
  #pauseMs = FIRST_PAUSE_MS;
  #problem = "no leader has replied";
  #givenUp = []; // texts of what ended unstored, for the next flush
  #inFlight = []; // what the request without a reply names, each with its holding
  /** `parts`: membership, holdings, connection, type and counts of the consumer. */
  constructor(parts) {
    Object.assign(this, parts);
  }
  /** STREAM: acknowledge everything below `end`. */
  acknowledgeUpTo(held, end) {
    if (end <= held.acknowledged || held.dropped) return;
    this.#add(held, "end", { first: held.acknowledged, end, delivery: 1n });
    held.acknowledged = end;
  }
  /** STREAM: acknowledge the resumed records of a key up to `number`. It is sent with an acknowledgement of the holding. */
  acknowledgeResumed(held, key, number) {
    held.resumed.set(keyText(key), { key, number });
    this.#addPosition(held);
  }
  /** Send what is acknowledged of a segment again, for what goes with it. */
  #addPosition(held) {
    const { first, end } = held.pending.get("end") ?? { first: held.acknowledged, end: held.acknowledged };
    if (!held.dropped) this.#add(held, "end", { first, end, delivery: 1n });
  }
  /** QUEUE: acknowledge records that were read and not delivered, or one that was. */
  acknowledgeRange = (held, first, end, delivery = 1n) => this.#add(held, first, { first, end, delivery });
  /** QUEUE: a delivery has failed; `named` has its bucket, delay and reason. */
  fail = (held, offset, delivery, named) => this.#add(held, offset, { first: offset, end: offset + 1n, delivery, named });
  #add(held, name, item) {
    held.pending.set(name, item);
    this.#since ||= performance.now();
    this.#added++;
    if (this.#added === 1 || this.#added === MOST) this.wake();
  }
  wake = () => this.#changed.notify();
  #hurry() {
    this.#isHurried = this.#since > 0;
    this.wake();
  }
  /** Wait until what was acknowledged before this call has a reply. */
  async sendNow() {
    const wanted = this.#requested + (this.#since ? 1 : 0);
    if (this.#since) this.#hurry();
    while (this.#requested - (this.#inFlight.length ? 1 : 0) < wanted && !this.connection.failure) await this.#changed.wait(1000);
  }
  late = (count = 1) => (this.counts.rejectedAcknowledgements += count);
  #giveUp = ({ segment, pending }) => pending.size && this.#givenUp.push(`${pending.size} of segment ${segment}`);
  /** A holding has ended: what is not sent of it is late. If it is given up, the next flush fails. */
  end(held, isGivenUp) {
    if (isGivenUp) this.#giveUp(held);
    const sent = this.#inFlight.filter((each) => each.held === held).flatMap(({ items }) => items.map(([, item]) => item));
    const unsent = [...held.pending.values()].filter((item) => !sent.includes(item));
    for (const item of unsent) this.late(this.#count({ held, ...item }, sent[0]?.end));
  }
  /** How many records an item is about; STREAM: those behind what is stored, or behind `from`. */
  #count = ({ held, first, end }, from = held.stored) => Math.max(0, Number(end - (this.type === "STREAM" ? from : first)));
  /** Wait until everything is stored, and until the leader has said whether what is in flight of an ended holding is late. */
  async flush(ms) {
    const until = performance.now() + ms;
    const unstored = () => this.holdings.all.filter(({ pending }) => pending.size);
    const isWaiting = () => unstored().length || this.#inFlight.some(({ held }) => held.dropped);
    while (isWaiting() && performance.now() < until && !this.connection.failure) {
      this.#hurry();
      await this.#changed.wait(Math.min(until - performance.now(), 1000));
    }
    unstored().forEach(this.#giveUp);
    const texts = this.#givenUp.splice(0);
    if (texts.length) throw new AcknowledgementsNotStoredError(`not stored: ${texts.join(", ")}, because ${this.#problem}`);
  }
  /** Send until `isEnding` returns true. */
  async run(isEnding) {
    while (!this.connection.failure && !isEnding()) {
      const now = performance.now();
      const intervalMs = this.#isHurried || this.#added >= MOST ? 0 : INTERVAL_MS;
      const dueAt = Math.min(this.#since ? this.#since + intervalMs : Infinity, this.#retryAt);
      await (now >= dueAt ? this.#send(now) : this.#changed.wait(Math.min(dueAt - now, 1000)));
    }
    this.wake();
  }
  async #send(now) {
    this.#isHurried = false;
    this.#since = this.#added = 0;
    this.#retryAt = Infinity;
    const batch = this.#nextBatch(now);
    const { positive, negative, parked, resumed } = batch;
    this.#requested++;
    const of = ({ segment, generation }) => [segment, generation];
    const fields = {
      acknowledgements: positive.map(({ held, first, end, delivery }) => [...of(held), first, end, delivery]),
      negative: negative.map(({ held, first, delivery, named: { bucket, delayMs, reason } }) => [...of(held), first, bucket, delivery, delayMs, reason]),
      parked: parked.map(([held, offset, key]) => [...of(held), offset, key]),
      resumed: resumed.map(({ held, key, number }) => [...of(held), key, number]),
    };
    this.#inFlight = [...positive, ...negative];
    try {
      if (this.#inFlight.length) this.#replied(batch, await this.membership.ask("acknowledge", fields, true));
    } catch (error) {
      if (["fenced", "other_history"].includes(error.verdict) || this.connection.failure) throw error;
      this.#refuse(this.#inFlight, error.message);
    } finally {
      this.#inFlight = [];
      this.wake();
      this.connection.changed.notify();
    }
  }
  /** Return what is due: records that were delivered for the first time as ranges, and the others one by one. */
  #nextBatch(now) {
    const batch = { positive: [], negative: [], parked: [], resumed: [] };
    for (const held of this.holdings.all) {
      const all = [...held.pending].sort(([, a], [, b]) => (a.first < b.first ? -1 : 1));
      let last = null;
      for (const [name, item] of all) {
        const { first, end, delivery, named, notBefore = 0 } = item;
        const isFull = batch.positive.length + batch.negative.length >= MOST;
        if (notBefore > now || isFull) this.#retryAt = Math.min(this.#retryAt, Math.max(notBefore, now));
        else if (named) batch.negative.push({ held, ...item, items: [[name, item]] });
        else if (last?.end === first && delivery === 1n && last.delivery === 1n) {
          last.end = end;
          last.items.push([name, item]);
        } else batch.positive.push((last = { held, first, end: this.#park(batch, held, end), delivery, items: [[name, item]] }));
      }
    }
    const resumedOf = ({ held }) => [...held.resumed.values()].map((each) => ({ held, ...each }));
    batch.resumed = batch.positive.flatMap(resumedOf).slice(0, MOST);
    return batch;
  }
  /** Name the parked records below `end`, as many as the batch takes; return the end of what they allow. */
  #park({ parked }, held, end) {
    for (const [offset, key] of [...held.parked].sort(([a], [b]) => (a < b ? -1 : 1))) {
      if (offset >= end) break;
      if (parked.length === MOST) return offset;
      parked.push([held, offset, key]);
    }
    return end;
  }
  #replied({ positive, negative, resumed }, { rejected = [], negative_rejected = [], redeliveries = [] }) {
    const refused = [rejected, negative_rejected].map((each) => new Set(each.map(([at]) => Number(at))));
    const left = [];
    [positive, negative].forEach((all, kind) => all.forEach((each, at) => (refused[kind].has(at) ? left.push(each) : this.#stored(each, resumed))));
    negative.forEach(({ held }, at) => (held.full = refused[1].has(at)));
    if (this.type === "STREAM") positive.forEach(({ held }, at) => (held.full = held.parked.size > 0 && refused[0].has(at)));
    for (const [at, redelivery] of redeliveries) this.onFailed(negative[Number(at)].held, [redelivery]);
    if (left.length) this.#refuse(left, [...rejected, ...negative_rejected][0][1]);
    else this.#pauseMs = FIRST_PAUSE_MS;
  }
  #stored(each, resumed) {
    const { held, end, items, named } = each;
    if (!named) this.counts.acknowledgedRecords += this.#count(each);
    if (end > held.stored) held.stored = end;
    for (const offset of held.parked.keys()) if (offset < end) held.parked.delete(offset);
    for (const [name, item] of items) {
      if (held.pending.get(name) === item) held.pending.delete(name);
      if (end < item.end && !held.pending.has(name)) this.#add(held, name, item); // more parked records than one batch takes
    }
    for (const { key, number } of resumed.filter((each) => each.held === held))
      if (held.resumed.get(keyText(key))?.number === number) held.resumed.delete(keyText(key));
    if (held.resumed.size && !held.pending.has("end")) this.#addPosition(held); // more resumed keys than one batch takes
  }
  #refuse(refused, reason) {
    this.#problem = reason;
    const notBefore = performance.now() + jittered(this.#pauseMs);
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
    this.#retryAt = Math.min(this.#retryAt, notBefore);
    for (const { items } of refused) for (const [, item] of items) item.notBefore = notBefore;
    for (const each of refused) if (each.held.dropped) this.late(this.#count(each));
  }
}
