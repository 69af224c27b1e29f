// One call of `Consumer.run`: takes records, calls the handler, and hands over what is handled.
import { HandlerFailedError, HeadgateError } from "./errors.mjs";
import { Schedule } from "./schedule.mjs";
import { Signal, jittered } from "./waiting.mjs";

const RETRY = { attempts: 5, firstPauseMs: 100, longestPauseMs: 10_000, then: "stop" };

export class Runner {
  isStopping = false;
  #isOver = false; // handlers that have not ended in time
  #failure = null;
  #report = { handled: 0, retried: 0, skipped: 0, unhandled: 0 };
  #changed = new Signal();
  #schedule; #handler; #concurrency; #retry; #internals;
  #running = 0; // calls of the handler
  #taken = new Set(); // holdings with records
  /** `internals`: holdings, take, mayBegin, wait, begin, handled, fail, resumed and progressed of the consumer. */
  constructor(handler, { concurrency = 1, retry = {} }, type, internals) {
    this.#retry = { ...RETRY, ...retry };
    const { then } = this.#retry;
    if (!(concurrency >= 1)) throw new HeadgateError(`run: concurrency=${concurrency} is below 1`);
    if (!["stop", "skip", type === "QUEUE" && "redeliver"].includes(then)) throw new HeadgateError(`run: then=${then} is not for type ${type}`);
    this.#handler = handler;
    this.#concurrency = concurrency;
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
    const isBusy = () => this.#running || (this.#schedule.unfinished && !this.#failure);
    while (isBusy() && performance.now() < until) await this.#changed.wait(until - performance.now());
    this.#isOver = true;
    this.#changed.notify();
    this.#report.unhandled = this.#schedule.unfinished;
    if (this.#failure) throw this.#failure;
    return this.#report;
  }
  #start() {
    while (this.isFree && !this.#failure && this.#internals.mayBegin()) {
      const work = this.#schedule.next();
      if (!work) return;
      this.#running++;
      this.#work(work).finally(() => {
        this.#running--;
        this.#start();
        this.#changed.notify();
        this.#internals.progressed();
      });
    }
  }
  async #work(work) {
    const { held, record } = work;
    if (held.dropped || !(await this.#internals.begin(held, record))) return void this.#schedule.finish(work);
    const error = await this.#call(record);
    if (error && this.#isOver) return this.#schedule.abandon(work); // it stays unhandled
    if (error && this.#retry.then === "stop") return this.#fail(record, error);
    if (error && this.#retry.then === "redeliver") this.#internals.fail(record, error);
    else this.#report[error ? "skipped" : "handled"]++;
    const { paused } = held;
    const passed = this.#schedule.finish(work);
    if (paused && !held.paused) this.#internals.resumed();
    if (passed) this.#internals.handled(held, passed);
  }
  /** Call the handler until it succeeds; return its last error. Only records of the same key wait meanwhile. */
  async #call(record) {
    const { attempts, firstPauseMs, longestPauseMs } = this.#retry;
    for (let failures = 1, pauseMs = firstPauseMs; ; failures++, pauseMs = Math.min(2 * pauseMs, longestPauseMs)) {
      try {
        return void (await this.#handler(record));
      } catch (error) {
        if (failures >= attempts || this.#isOver) return error ?? new Error("the handler threw nothing");
      }
      this.#report.retried++;
      for (const until = performance.now() + jittered(pauseMs); performance.now() < until && !this.#isOver; ) await this.#changed.wait(until - performance.now());
    }
  }
  #fail({ segment, offset }, error) {
    this.#failure ??= new HandlerFailedError(`segment ${segment}, offset ${offset}: ${error.message ?? error}`);
    this.#failure.cause ??= error;
    this.stop();
  }
}
