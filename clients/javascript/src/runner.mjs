// One call of `Consumer.run`: takes records, calls the handler, and hands over what is handled.
import { HandlerFailedError, HeadgateError, reasonText } from "./errors.mjs";
import { Schedule } from "./schedule.mjs";
import { Signal, jittered } from "./waiting.mjs";

const RETRY = { attempts: 5, firstPauseMs: 100, longestPauseMs: 10_000, then: "stop" };
const TYPES = { redeliver: "QUEUE", park: "STREAM" }; // for which type a last action is; the others are for each

export class Runner {
  isStopping = false;
  #isOver = false; // handlers that have not ended in time
  #failure = null;
  #report = { handled: 0, retried: 0, skipped: 0, parked: 0, redelivered: 0, unhandled: 0 };
  #changed = new Signal();
  #schedule; #handler; #concurrency; #retry; #onFailed; #internals;
  #running = 0; // calls of the handler
  #pauses = new Set(); // timers of works that wait for their retry
  #retries = []; // works whose pause is over
  #taken = new Set(); // holdings with records
  /** `internals`: holdings, take, mayBegin, wait, begin, handled, fail, park, resumed and progressed of the consumer. */
  constructor(handler, { concurrency = 1, retry = {}, onFailed = () => {} }, type, internals) {
    this.#retry = { ...RETRY, ...retry };
    const { then, attempts } = this.#retry;
    if (!(concurrency >= 1)) throw new HeadgateError(`run: concurrency=${concurrency} is below 1`);
    if (!(attempts >= 1)) throw new HeadgateError(`run: attempts=${attempts} is below 1`);
    if (!["stop", "skip", "redeliver", "park"].includes(then)) throw new HeadgateError(`run: then=${then} is unknown: use stop, skip, redeliver or park`);
    if ((TYPES[then] ?? type) !== type) throw new HeadgateError(`run: then=${then} is for type ${TYPES[then]}, and this subscription is of type ${type}`);
    this.#handler = handler;
    this.#concurrency = concurrency;
    this.#onFailed = onFailed;
    this.#internals = internals;
    this.#schedule = new Schedule(internals.holdings, type);
  }
  get isFree() {
    return this.#running < this.#concurrency;
  }
  stop() {
    this.isStopping = true;
    for (const held of this.#taken) this.#schedule.giveBack(held);
    this.#changed.notify();
  }
  /** A segment is revoked, or another consumer has it: begin no further record of it. */
  revoke(held) {
    this.#schedule.giveBack(held);
    if (held.dropped) this.#taken.delete(held);
  }
  /** Handle records until `stop`; then handlers have `stopMs` to end. */
  async run(stopMs) {
    while (!this.isStopping) {
      const entry = this.#internals.take();
      if (entry) this.#taken.add(entry.held) && this.#schedule.add(entry);
      this.#start(); // after the end of a lease, what waits
      if (!entry) await this.#internals.wait();
    }
    const until = performance.now() + stopMs;
    const isBusy = () => this.#running || (this.#schedule.unfinished && !this.#failure && this.#internals.mayBegin());
    while (isBusy() && performance.now() < until) await this.#changed.wait(until - performance.now());
    this.#isOver = true;
    this.#pauses.forEach(clearTimeout);
    this.#report.unhandled = this.#schedule.unfinished;
    if (this.#failure) throw this.#failure;
    return { ...this.#report };
  }
  #start() {
    while (this.isFree && !this.#failure && !this.#isOver && this.#internals.mayBegin()) {
      const work = this.#retries.shift() ?? this.#schedule.next();
      if (!work) return;
      this.#running++;
      this.#attempt(work).catch((error) => this.#end(error)).finally(() => {
        this.#running--;
        this.#start();
        this.#changed.notify();
        this.#internals.progressed();
      });
    }
  }
  async #attempt(work) {
    const { held, record, isBegun } = work;
    work.isBegun = true;
    const isOwn = !held.dropped && (await this.#internals.begin(held, record, isBegun));
    if (isOwn && !this.#internals.mayBegin()) return void this.#retries.unshift(work); // the lease has ended meanwhile
    const error = isOwn ? await this.#call(record) : null;
    if (this.#isOver) return; // it stays unhandled
    if (error && !held.dropped && ++work.failures < this.#retry.attempts) return this.#retryLater(work, error);
    if (isOwn && !error) this.#report.handled++;
    else if (isOwn && !held.dropped && !(await this.#giveUp(work, error))) return;
    this.#finish(work);
  }
  async #call(record) {
    try {
      await this.#handler(record);
      return null;
    } catch (error) {
      return error ?? new Error("the handler threw nothing");
    }
  }
  /** Only records of the same key wait meanwhile. */
  #retryLater(work, error) {
    const { firstPauseMs, longestPauseMs } = this.#retry;
    this.#onFailed(work.record, error, "retry");
    this.#report.retried++;
    const retry = () => {
      this.#pauses.delete(timer);
      this.#retries.push(work);
      this.#start();
    };
    const timer = setTimeout(retry, jittered(Math.min(firstPauseMs * 2 ** (work.failures - 1), longestPauseMs)));
    this.#pauses.add(timer);
  }
  /** Perform the last action; return whether the record counts as handled then. */
  async #giveUp({ record, key }, error) {
    const { then } = this.#retry;
    this.#onFailed(record, error, then);
    if (then === "stop") return this.#fail(record, error);
    if (then === "redeliver") {
      this.#report.redelivered++;
      this.#internals.fail(record, reasonText(error));
    } else if (then === "skip") this.#report.skipped++;
    else {
      const refusal = await this.#internals.park(record, reasonText(error)).catch((refused) => refused);
      if (refusal) return this.#fail(record, error, `, and its key is not parked: ${refusal.message}`);
      const later = this.#schedule.takeWaiting(key);
      for (const work of later) if (!work.held.dropped) await this.#internals.park(work.record, "");
      later.forEach((work) => this.#finish(work));
      this.#report.parked += 1 + later.length;
    }
    return true;
  }
  #finish(work) {
    const { held, held: { paused } } = work;
    const passed = this.#schedule.finish(work);
    if (paused && !held.paused) this.#internals.resumed();
    if (passed) this.#internals.handled(held, passed);
  }
  #fail({ segment, offset }, error, more = "") {
    return this.#end(Object.assign(new HandlerFailedError(`segment ${segment}, offset ${offset}: ${reasonText(error)}${more}`), { cause: error }));
  }
  #end(failure) {
    this.#failure ??= failure;
    this.stop();
    return false;
  }
}
