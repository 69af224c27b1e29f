// One call of `Consumer.run`: takes records, calls the handler, and hands over what is handled.
import { HandlerFailedError, HeadgateError, reasonText } from "./errors.mjs";
import { requireCounts, requireFunction, requireNoOther, withDefaults } from "./options.mjs";
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
  #pauses = new Set(); // timers of batches that wait for their retry
  #retries = []; // batches whose pause is over
  #batchTimer; // until an incomplete batch starts
  #taken = new Set(); // holdings with records
  /** `internals`: holdings, take, mayBegin, wait, begin, handled, late, fail, park, resumed and progressed of the consumer. */
  constructor(handler, { concurrency = 1, retry = {}, onFailed = () => {}, batch, lookAhead, ...others }, type, internals) {
    requireNoOther("run", others);
    requireFunction("run: onFailed", onFailed);
    this.#retry = withDefaults("run: retry", retry, RETRY);
    const { then, attempts } = this.#retry;
    requireCounts({ concurrency, attempts });
    if (!["stop", "skip", "redeliver", "park"].includes(then)) throw new HeadgateError(`run: then=${then} is unknown: use stop, skip, redeliver or park`);
    if ((TYPES[then] ?? type) !== type) throw new HeadgateError(`run: then=${then} is for type ${TYPES[then]}, and this subscription is of type ${type}`);
    this.#handler = batch ? handler : ([record]) => handler(record);
    this.#concurrency = concurrency;
    this.#onFailed = onFailed;
    this.#internals = internals;
    this.#schedule = new Schedule(internals.holdings, type, { batch, lookAhead });
  }
  get isFree() { return this.#running < this.#concurrency; }
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
  /** Handle records until `stop`, or until `isDone` returns true while none is at work; then handlers have `stopMs` to end. */
  async run(stopMs, isDone) {
    while (!this.isStopping) {
      const entry = this.#internals.take();
      if (entry) this.#taken.add(entry.held) && this.#schedule.add(entry);
      this.#start(); // after the end of a lease, what waits
      if (!entry && !this.#schedule.unfinished && (await isDone?.())) break;
      if (!entry) await this.#internals.wait();
    }
    this.isStopping = true; // no batch waits for more records
    this.#start();
    const until = performance.now() + stopMs;
    const isBusy = () => this.#running || (this.#schedule.unfinished && !this.#failure && this.#internals.mayBegin());
    while (isBusy() && performance.now() < until) await this.#changed.wait(until - performance.now());
    this.#isOver = true;
    this.#pauses.forEach(clearTimeout);
    clearTimeout(this.#batchTimer);
    this.#report.unhandled = this.#schedule.unfinished;
    if (this.#failure) throw this.#failure;
    return { ...this.#report };
  }
  #start() {
    clearTimeout(this.#batchTimer);
    while (this.isFree && !this.#failure && !this.#isOver && this.#internals.mayBegin()) {
      const batch = this.#retries.shift() ?? this.#nextBatch();
      if (!batch) return;
      this.#running++;
      this.#attempt(batch).catch((error) => this.#end(error)).finally(() => {
        this.#running--;
        this.#start();
        this.#changed.notify();
        this.#internals.progressed();
      });
    }
  }
  #nextBatch() {
    const works = this.#schedule.next(this.isStopping);
    if (works) return { works, failures: 0, isBegun: false };
    const { waitMs } = this.#schedule;
    if (waitMs < Infinity) this.#batchTimer = setTimeout(() => this.#start(), waitMs + 1);
  }
  async #attempt(batch) {
    const { works, isBegun } = batch;
    batch.isBegun = true;
    const isOwn = async ({ held, record }) => !held.dropped && this.#internals.begin(held, record, isBegun);
    const found = await Promise.all(works.map(isOwn));
    works.forEach((work, at) => (work.isOver = !found[at]));
    const own = works.filter(({ isOver }) => !isOver);
    if (own.length && !this.#internals.mayBegin()) return void this.#retries.unshift(batch); // the lease has ended meanwhile
    const error = own.length ? await this.#call(own.map(({ record }) => record)) : null;
    if (this.#isOver) return; // it stays unhandled
    const left = own.filter(({ held }) => !held.dropped);
    if (error && left.length && ++batch.failures < this.#retry.attempts) return this.#retryLater(batch, left, error);
    if (!error) this.#report.handled += own.length;
    if (!error) this.#internals.late(own.length - left.length);
    else if (left.length && !(await this.#giveUp(left, error))) return;
    works.forEach((work) => this.#finish(work));
  }
  /** Return the error of the handler; null: there was none. */
  async #call(records) {
    return (async () => this.#handler(records))().then(() => null, (error) => error ?? new Error("the handler threw nothing"));
  }
  /** Only records of the same key wait meanwhile. */
  #retryLater(batch, works, error) {
    const { firstPauseMs, longestPauseMs } = this.#retry;
    works.forEach(({ record }) => this.#onFailed(record, error, "retry"));
    this.#report.retried += works.length;
    const retry = () => {
      this.#pauses.delete(timer);
      this.#retries.push(batch);
      this.#start();
    };
    const timer = setTimeout(retry, jittered(Math.min(firstPauseMs * 2 ** (batch.failures - 1), longestPauseMs)));
    this.#pauses.add(timer);
  }
  /** Perform the last action; return whether the records count as handled then. */
  async #giveUp(works, error) {
    const { then } = this.#retry;
    works.forEach(({ record }) => this.#onFailed(record, error, then));
    if (then === "stop") return this.#fail(works, error);
    if (then === "redeliver") {
      this.#report.redelivered += works.length;
      for (const work of works) {
        work.isOver = true;
        this.#internals.fail(work.record, reasonText(error));
      }
    } else if (then === "skip") this.#report.skipped += works.length;
    else {
      const park = async ({ record }) => this.#internals.park(record, reasonText(error));
      for (const work of works) {
        const refusal = await park(work).catch((refused) => refused);
        if (refusal) return this.#fail(works, error, `, and its key is not parked: ${refusal.message}`);
      }
      const later = [...new Set(works.map(({ key }) => key))].flatMap((key) => this.#schedule.takeWaiting(key));
      for (const work of later) if (!work.held.dropped) await this.#internals.park(work.record, "");
      later.forEach((work) => this.#finish(work));
      this.#report.parked += works.length + later.length;
    }
    return true;
  }
  #finish(work) {
    const { held, held: { paused } } = work;
    const passed = this.#schedule.finish(work);
    if (paused && !held.paused) this.#internals.resumed();
    if (passed && !work.isOver) this.#internals.handled(held, passed); // a delivery that has ended is not acknowledged
  }
  #fail([{ record: { segment, offset } }], error, more = "") {
    return this.#end(Object.assign(new HandlerFailedError(`segment ${segment}, offset ${offset}: ${reasonText(error)}${more}`), { cause: error }));
  }
  #end(failure) {
    this.#failure ??= failure;
    this.stop();
    return false;
  }
}
