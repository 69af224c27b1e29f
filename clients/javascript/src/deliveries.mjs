// The deliveries of a QUEUE consumer: begins them, ends them, and delivers again what has failed.
//
// A delivery ends once: acknowledged, acknowledged negatively, or timed out. What comes later has no effect. With
// a policy it begins once the leader has stored that, so the loss of this consumer counts for what the program has seen.
import { HeadgateError, reasonText } from "./errors.mjs";
import { bucketOf } from "./hashing.mjs";
import { sleep } from "./waiting.mjs";

const [RETRY_MS, SWEEP_MS, DAY_MS, MOST_BEGUN] = [1000, 100, 86_400_000, 1000]; // the first one: before a delivery that could not begin is tried again; the last one: of one request

export class Deliveries {
  #due = new Set(); // {held, at, offset, delivery, chunk} or {held, at, record}
  #beginning = []; // {held, record, resolve} that the next request names
  #request = null; // the request in flight, and those that follow it
  #isReading = false; // a record is read in order to be delivered again: one at a time, so memory has a bound
  /** `parts`: membership, holdings, feed, acknowledger and connection of the consumer. */
  constructor(parts) {
    Object.assign(this, parts);
    this.acknowledger.onFailed = (held, redeliveries) => this.schedule(held, redeliveries);
  }
  /** Deliver the records of [offset, delivery, delay, chunk] again when they are due. */
  schedule(held, redeliveries) {
    for (const [offset, delivery, delayMs, chunk] of redeliveries) // delivery 0: it is dead
      if (delivery) this.#due.add({ held, at: performance.now() + Number(delayMs), offset, delivery, chunk });
  }
  /** Deliver again, and time out, until `isEnding` returns true. */
  async run(isEnding) {
    while (!this.connection.failure && !isEnding()) {
      const now = performance.now();
      if (!this.#isReading) this.connection.guard(() => this.#deliverDue());
      for (const held of this.holdings.all)
        for (const [offset, { deadline }] of held.open)
          if (deadline <= now) this.#fail(held, offset, 0n, `not acknowledged within ${this.membership.policy.ack_timeout_ms} ms`);
      await sleep(SWEEP_MS);
    }
  }
  /** Whether a record is to be delivered again now. */
  get isDue() {
    return this.#isReading || [...this.#due].some(({ held, at }) => held.isReadable && at <= performance.now());
  }
  async #deliverDue() {
    this.#isReading = true;
    for (const each of [...this.#due].filter(({ held, at }) => !held.isReadable || at <= performance.now())) await this.#readAgain(each, this.#due.delete(each));
    this.#isReading = false;
  }
  async #readAgain(each) {
    const { held, offset, delivery, chunk } = each;
    if (!held.isReadable) return;
    if (held.paused) return void this.#due.add(each); // `run` is far enough ahead of its handlers
    const row = each.row ?? (await this.feed.readOne(held.segment, offset, chunk).catch((error) => this.feed.tolerate(error)));
    if (!row) return void this.#due.add({ ...each, at: performance.now() + RETRY_MS });
    await this.feed.put(held, row, { deliveryCount: Number(delivery), again: true });
  }
  /** Return whether the program may have a record that was taken from the feed, or, if `isBegun`, still may. */
  async begin(held, record, isBegun) {
    if (isBegun) return this.#isOpen(held, record);
    const { max_deliveries, ack_timeout_ms } = this.membership.policy;
    held.open.set(record.offset, { delivery: BigInt(record.deliveryCount), bucket: bucketOf(record.key), deadline: Infinity });
    if (!max_deliveries && !ack_timeout_ms) return true;
    const begun = new Promise((resolve) => this.#beginning.push({ held, record, resolve }));
    this.#request ??= this.#sendBegun().finally(() => (this.#request = null));
    const [accepted] = await Promise.all([begun, this.acknowledger.sendNow()]);
    return accepted && this.#isOpen(held, record);
  }
  async #sendBegun() {
    await null; // for others that begin now
    while (this.#beginning.length && !this.connection.failure) {
      const all = this.#beginning.splice(0, MOST_BEGUN);
      const some = all.filter(({ held, record, resolve }) => this.#isOpen(held, record) || resolve(false));
      const records = some.map(({ held, record: { segment, generation, offset, key, deliveryCount } }) =>
        [segment, generation, offset, bucketOf(key), BigInt(deliveryCount)]);
      try {
        if (!some.length) continue;
        const reply = await this.membership.ask("begin_deliveries", { records }, true);
        if (!this.membership.mayDeliver) throw new HeadgateError("the lease has ended: another consumer may have them"); // asked again
        this.#begun(some, reply);
      } catch (error) {
        if (["fenced", "other_history"].includes(error.verdict)) this.connection.fail(error);
        this.#beginning.unshift(...some);
        await sleep(RETRY_MS); // the right may be given back
      }
    }
    for (const { resolve } of this.#beginning.splice(0)) resolve(false);
  }
  #begun(some, { rejected = [], delayed = [] }) {
    const [refused, later] = [new Set(rejected.map(([at]) => Number(at))), new Set(delayed.map(Number))];
    const { ack_timeout_ms: timeoutMs } = this.membership.policy;
    some.forEach(({ held, record, resolve }, at) => {
      const [{ offset }, isLater] = [record, later.has(at)];
      if (!refused.has(at)) held.full = isLater;
      if (!this.#isOpen(held, record) || isLater || refused.has(at)) held.open.delete(offset);
      else if (timeoutMs) held.open.get(offset).deadline = performance.now() + Number(timeoutMs);
      const row = { ...record, timestamp_ms: record.timestampMs };
      if (isLater) this.#due.add({ held, at: performance.now() + RETRY_MS, offset, delivery: record.deliveryCount, row });
      resolve(held.open.has(offset));
    });
    this.feed.space.notify();
  }
  #isOpen = (held, { offset, deliveryCount }) => !held.dropped && held.open.get(offset)?.delivery === BigInt(deliveryCount);
  /** Return the holding of a record if this delivery has not ended. One that has failed, or has moved, is late. */
  #present(record) {
    const [held, { offset }] = [this.holdings.of(record), record];
    if (held && this.#isOpen(held, record)) return held;
    if (!held || held.open.has(offset) || held.retrying.has(offset)) this.acknowledger.late();
  }
  acknowledge(record) {
    const held = this.#present(record);
    if (!held?.open.delete(record.offset)) return;
    held.retrying.delete(record.offset);
    this.acknowledger.acknowledgeRange(held, record.offset, record.offset + 1n, BigInt(record.deliveryCount));
  }
  negativeAcknowledge(record, { delayMs = 0, reason = "" } = {}) {
    if (!(delayMs >= 0 && delayMs <= DAY_MS)) throw new HeadgateError(`negativeAcknowledge: delayMs=${delayMs} is not within a day`);
    const held = this.#present(record);
    if (held) this.#fail(held, record.offset, BigInt(Math.round(delayMs)), reasonText(reason));
  }
  /** Let the present delivery of a record time out after `ms` from now. */
  extend(record, ms) {
    if (!(ms >= 0)) throw new HeadgateError(`extend: ms=${ms} is below 0`);
    const open = this.#present(record)?.open.get(record.offset);
    if (open && open.deadline < Infinity) open.deadline = performance.now() + ms;
  }
  #fail(held, offset, delayMs, reason) {
    const { delivery, bucket } = held.open.get(offset);
    held.open.delete(offset);
    held.retrying.add(offset);
    this.acknowledger.fail(held, offset, delivery, { bucket, delayMs, reason });
  }
}
