// A consumer of a STREAM, a QUEUE or a CHECKPOINT subscription, written from docs/protocol.md and docs/ledger.md alone.
import { randomBytes } from "node:crypto";
import { Acknowledger } from "./acknowledger.mjs";
import { Callbacks } from "./callbacks.mjs";
import { CatchUp } from "./catch_up.mjs";
import { Connection } from "./connection.mjs";
import { DeadLetters } from "./dead_letters.mjs";
import { Deliveries } from "./deliveries.mjs";
import { HeadgateError } from "./errors.mjs";
import { Feed } from "./feed.mjs";
import { History } from "./history.mjs";
import { Holdings } from "./holdings.mjs";
import { Ledger } from "./ledger.mjs";
import { Membership } from "./membership.mjs";
import { ledgerSource, requireBroker, requireFunction, requireMs, requireOneOf, requireOptions, requireRecord, requireText } from "./options.mjs";
import { Parking } from "./parking.mjs";
import { decodePositions, encodePositions } from "./positions.mjs";
import { Resumption } from "./resumption.mjs";
import { Runner } from "./runner.mjs";
import { explained } from "./unknown_names.mjs";

const CLOSE_MS = 5000; // for the last acknowledgements, and again for leaving
const STOP_MS = 20_000; // for handlers that are at work
const [POLL_MS, CATCH_UP_MS] = [1000, 50];
const SKIPPED_MS = 1000; // how often a range without deliveries acknowledges the records of other ranges that it has passed

export class Consumer {
  #options; #type; #names; #holdings; #history; #token;
  #connection; #membership; #feed; #acknowledger; #deliveries; #deadLetters; #parking; #resumption; #callbacks; // since `open`
  #runner = null; #isAtWork = false; // handlers of `run` have not ended
  #counts = { deliveredRecords: 0, redeliveredRecords: 0, acknowledgedRecords: 0, rejectedAcknowledgements: 0, handlerCalls: 0, handlerMs: 0 };
  #isStopping = false; // deliver nothing more
  #isClosing = false; #closing = null; // the tasks end; promise of the first `close`
  #tasks = [];
  /** `ledger` is the folder with the ledger, or a store, see ledger.mjs. `positions`: CHECKPOINT only, as `positions` returned it. */
  constructor(options) {
    requireOptions("new Consumer", options);
    const { topic, subscription, consumer, type = "STREAM", start = "latest", order, positions, behind, ledger, onGranted, onRevoked, ...broker } = options;
    for (const [name, text] of Object.entries({ topic, subscription, consumer: consumer ?? "generated" })) requireText(name, text);
    requireBroker("new Consumer", broker);
    requireOneOf("type", type, "STREAM", "QUEUE", "CHECKPOINT");
    requireOneOf("start", start, "earliest", "latest");
    requireOneOf("order", order, "strict", "none");
    requireOneOf("behind", behind, "error", "continue");
    for (const [name, callback] of Object.entries({ onGranted, onRevoked })) if (callback) requireFunction(name, callback);
    if (behind === "continue" && type !== "CHECKPOINT") throw new HeadgateError(`behind=continue: not for type ${type}, which passes over gaps`);
    if (positions !== undefined && type !== "CHECKPOINT") throw new HeadgateError(`positions: not for type ${type}`);
    this.#token = positions === undefined ? null : decodePositions(positions);
    if (this.#token && this.#token.topic !== topic) throw new HeadgateError(`positions: they are of topic ${this.#token.topic}`);
    this.#options = { ledger: ledgerSource(ledger), broker, callbacks: { onGranted, onRevoked }, registration: { subscription_type: type, supports_bucket_ranges: type !== "CHECKPOINT", start, order, behind, version: "js" } };
    this.#type = type;
    const name = consumer ?? `consumer-${randomBytes(6).toString("hex")}`;
    this.#names = { topic, subscription, consumer: name, incarnation: BigInt(Date.now()) };
    this.#history = new History(this.#token?.history);
    this.#holdings = new Holdings(type, this.#token?.positions, this.#token?.held);
  }
  /** Connect and register. */
  async open() {
    if (this.#connection) throw new HeadgateError("open: this consumer was opened before: create another one");
    const { broker, callbacks, registration: options, ledger: source } = this.#options;
    const { topic, incarnation } = this.#names;
    const connection = (this.#connection = new Connection(broker, { incarnation, onFailure: () => this.stop() }));
    const isClosing = () => this.#isClosing;
    try {
      const shard = await connection.shardOf(topic);
      const ledger = new Ledger(source, shard.number, connection.cluster.ledger_id);
      await ledger.check();
      const parts = { connection, shard, ledger, topic, holdings: this.#holdings, history: this.#history, counts: this.#counts, names: this.#names, type: this.#type };
      parts.membership = this.#membership = new Membership({ ...parts, options, topicId: this.#token?.topicId });
      parts.feed = this.#feed = new Feed(parts);
      parts.membership.deadLetters = this.#deadLetters = new DeadLetters({ ...parts, broker });
      parts.membership.resumption = this.#resumption = new Resumption(parts);
      this.#feed.onSkipped = (held, first, end) => this.#onSkipped(held, first, end);
      parts.acknowledger = this.#acknowledger = new Acknowledger(parts);
      this.#parking = new Parking({ ...parts, acknowledgeUpTo: (held, end) => this.#acknowledgeUpTo(held, end) });
      this.#deliveries = new Deliveries(parts);
      this.#callbacks = new Callbacks(callbacks, connection.guard, () => connection.changed.notify());
      const onGranted = (held) => connection.guard(() => this.#read(held, this.#callbacks.granted(held)));
      Object.assign(this.#holdings, { onGranted, onRevoked: (held) => this.#onRevoked(held), onDropped: (held) => this.#onDropped(held) });
      await this.#membership.register();
    } catch (refusal) {
      const error = await explained(connection, topic, refusal);
      this.#isStopping = this.#isClosing = true;
      await connection.close();
      throw error;
    }
    const loops = [() => this.#membership.run((now) => this.#finished(now), isClosing), () => this.#acknowledger.run(isClosing)];
    if (this.#type === "QUEUE") loops.push(() => this.#deliveries.run(isClosing));
    this.#tasks = loops.map((loop) => connection.guard(loop));
  }
  /** Store the acknowledgements, leave and disconnect; a later call ends with the first one. `failed`: the deliveries of a QUEUE that have begun have failed. */
  async close(options) {
    if (this.#isAtWork) throw new HeadgateError("close: run is at work: call stop(), and close the consumer once run has ended, unless run closes it");
    if (this.#connection) await (this.#closing?.catch(() => {}) ?? (this.#closing = this.#close(options))); // who called first has the error
  }
  async #close({ failed = false } = {}) {
    this.stop();
    const connection = this.#connection;
    if (!this.#tasks.length) return connection.close(); // `open` has failed, or fails now
    await this.#callbacks?.end(this.#holdings.all, connection.failure ? 0 : this.#membership.finishMs);
    const late = setTimeout(() => connection.fail(new HeadgateError("no leader has confirmed the departure")), 2 * CLOSE_MS);
    try {
      const unstored = await this.#acknowledger.flush(CLOSE_MS).catch((error) => error);
      failed ||= this.#holdings.all.some((held) => held.hasUnstoredFailure);
      this.#isClosing = true;
      connection.changed.notify();
      this.#acknowledger.wake();
      await Promise.all(this.#tasks);
      if (!connection.failure) await this.#membership.ask("leave", { failed }).catch(() => {}); // the leader notices
      if (connection.failure ?? unstored) throw connection.failure ?? unstored;
    } finally {
      clearTimeout(late);
      await Promise.all([connection.close(), this.#deadLetters.close()]);
    }
  }
  /** Deliver nothing more: `run` and the iteration end. */
  stop() {
    if (!this.#isStopping) this.#runner?.stop();
    this.#isStopping = true;
    this.#feed?.end();
    this.#connection?.changed.notify();
  }

  // Receiving
  /** Iterate over records until `stop`. Acknowledge each, unless the type is CHECKPOINT. */
  async *[Symbol.asyncIterator]() {
    this.#requireOpen("the iteration");
    while (!this.#isStopping) {
      const { held, record } = this.#take() ?? {};
      if (!record) await this.#connection.changed.wait(POLL_MS);
      else if (await this.#begin(held, record)) {
        if (this.#type === "CHECKPOINT") this.#handled(held, record);
        yield record;
      }
    }
    if (this.#connection.failure) throw this.#connection.failure;
  }
  /**
   * Call `handler` for each record, and acknowledge what it has handled, until `stop`. Records of one key are handled one
   * at a time and in order, those of different keys in parallel. Opens the consumer if it is not open, and closes it then.
   * `untilCaughtUp`: end once everything is handled that was stored at the begin, and no other segment is left unread.
   */
  async run(handler, { stopMs = STOP_MS, untilCaughtUp = false, ...options } = {}) {
    requireFunction("run: handler", handler);
    requireMs("run: stopMs", stopMs);
    if (this.#runner) throw new HeadgateError("run: this consumer has run already");
    const opens = !this.#connection;
    const counted = async (given) => {
      const since = performance.now();
      this.#counts.handlerCalls++;
      await (async () => handler(given))().finally(() => (this.#counts.handlerMs += performance.now() - since));
    };
    this.#runner = new Runner(counted, options, this.#type, {
      holdings: this.#holdings, take: () => this.#take(), mayBegin: () => this.#membership.mayDeliver,
      wait: () => this.#connection.changed.wait(untilCaughtUp ? CATCH_UP_MS : POLL_MS),
      begin: (held, record, isBegun) => this.#begin(held, record, isBegun), handled: (held, record) => this.#handled(held, record),
      late: (count) => this.#acknowledger.late(count), fail: (record, reason) => this.negativeAcknowledge(record, { reason }),
      park: (record, reason) => this.park(record, { reason }),
      resumed: () => this.#feed.space.notify(), progressed: () => this.#connection.changed.notify(),
    });
    try {
      if (opens) await this.open();
      if (this.#isStopping) this.#runner.stop();
      const parts = { membership: this.#membership, holdings: this.#holdings, deliveries: this.#deliveries, deadLetters: this.#deadLetters, resumption: this.#resumption };
      const catchUp = untilCaughtUp ? new CatchUp(parts) : null;
      this.#isAtWork = true;
      const report = await this.#runner.run(stopMs, catchUp && (() => catchUp.isDone(() => this.#isStopping))).finally(() => (this.#isAtWork = false));
      if (this.#connection.failure) throw this.#connection.failure;
      this.stop();
      if (opens) await this.close();
      return report;
    } catch (error) {
      this.stop();
      if (opens) await this.close({ failed: true }).catch(() => {}); // the first error says why
      throw error;
    }
  }
  /** Acknowledge a record; STREAM: and every record delivered before it in its segment. It is sent in the background. */
  acknowledge(record) {
    const held = this.#heldOf("acknowledge", record);
    if (this.#runner) throw new HeadgateError("acknowledge: run acknowledges each record once its handler has returned");
    if (this.#type === "CHECKPOINT") throw new HeadgateError("acknowledge: a CHECKPOINT consumer stores its positions instead");
    if (held) this.#handled(held, record);
    else this.#acknowledger.late();
  }
  /** QUEUE: the record could not be processed. It is delivered again after `delayMs`, and other records meanwhile. */
  negativeAcknowledge(record, options = {}) {
    this.#heldOf("negativeAcknowledge", record, "QUEUE", "only a QUEUE delivers again");
    this.#deliveries.negativeAcknowledge(record, options);
  }
  /** QUEUE: let the delivery of a record time out `ms` from now, whatever it was before. Also for a handler of `run`. */
  extend(record, ms) {
    this.#heldOf("extend", record, "QUEUE", "only deliveries of a QUEUE time out");
    this.#deliveries.extend(record, ms);
  }
  /**
   * STREAM: the record could not be processed. It, and every later one of its key, goes to the dead-letter topic, and counts
   * as acknowledged. Resolves once the leader has stored that; RequestRejectedError: the key cannot be parked. A key that a
   * command resumes delivers its parked records again, in order: acknowledge each, or park it again.
   */
  async park(record, { reason = "" } = {}) {
    const held = this.#heldOf("park", record, "STREAM", "only a STREAM has parked keys; a QUEUE has negativeAcknowledge");
    if (held) await this.#parking.park(held, record, reason);
  }
  /** Wait until everything that was acknowledged is stored, except what was too late: see `metrics`. */
  async flush({ timeoutMs = 30_000 } = {}) {
    this.#requireOpen("flush");
    await this.#acknowledger.flush(requireMs("flush: timeoutMs", timeoutMs));
  }
  #requireOpen(what) {
    if (!this.#acknowledger) throw new HeadgateError(`${what}: this consumer is not open: await open() before, or call run`);
  }
  /** Return the holding of a record that this consumer has delivered; undefined: it has ended. A QUEUE also knows each delivery. */
  #heldOf(what, record, type = this.#type, why = "") {
    const held = this.#holdings.of(record ?? {});
    const wasDelivered = !held || this.#type === "QUEUE" || record.parkedNumber || record.offset < held.delivered;
    requireRecord(`${what}: record`, record, wasDelivered ? this.#names.topic : null);
    this.#requireOpen(what);
    if (this.#isClosing || this.#type !== type) throw new HeadgateError(`${what}: ${this.#isClosing ? "this consumer is closed" : why}`);
    return held;
  }
  /** CHECKPOINT: where the next consumer continues, as text. */
  get positions() {
    const { topicId } = this.#membership ?? {};
    if (!topicId) throw new HeadgateError("positions: this consumer was not opened");
    const { positions, own: held } = this.#holdings;
    const ledgerId = this.#connection.cluster.ledger_id;
    return encodePositions({ topic: this.#names.topic, topicId, ledgerId, positions, held, history: this.#history.points });
  }
  /** The segments that are held now, as a whole or in part. */
  get segments() { return this.#holdings.segments; }
  /** What this consumer has counted, and how far it is behind. */
  metrics() {
    const all = this.#isClosing ? [] : this.#holdings.all;
    const queuedRecords = all.reduce((sum, { queued }) => sum + queued, 0);
    return { ...this.#counts, heldSegments: all.length, queuedRecords, lagMs: this.#feed?.lagMs(all) ?? 0 };
  }
  #take() {
    this.#membership.asked ||= this.#runner?.isFree ?? true;
    const entry = this.#membership.mayDeliver ? this.#feed.take() : undefined;
    if (!entry) return undefined;
    const { held, record: { offset, parkedNumber } } = entry;
    if (!parkedNumber && offset >= held.delivered) held.delivered = offset + 1n;
    return entry;
  }
  #begin = async (held, record, isBegun = false) => this.#type !== "QUEUE" || this.#deliveries.begin(held, record, isBegun);
  #handled(held, record) {
    if (this.#type === "QUEUE") this.#deliveries.acknowledge(record);
    else if (record.parkedNumber) this.#parking.acknowledge(held, record);
    else if (this.#type === "STREAM") this.#acknowledgeUpTo(held, record.offset + 1n);
    else this.#holdings.positions.set(held.segment, record.offset + 1n);
  }

  // Segments

  async #read(held, granted) {
    await granted;
    this.#deliveries.schedule(held, held.grant.failed ?? []);
    await this.#feed.read(held);
    this.#acknowledgeSkipped(held);
  }
  #onRevoked(held) {
    this.#runner?.revoke(held);
    this.#feed.space.notify();
  }
  #onDropped(held) {
    this.#onRevoked(held);
    this.#callbacks.revoked(held, 0);
    this.#acknowledger.end(held, held.revokedAt && performance.now() - held.revokedAt > this.#membership.finishMs);
    if (this.#type === "CHECKPOINT") this.#membership.mustRegister = true; // the leader says whether it was pruned
  }
  #acknowledgeUpTo(held, end) {
    while (held.parked.has(end)) end++;
    this.#acknowledger.acknowledgeUpTo(held, end);
    this.#acknowledgeSkipped(held);
  }
  /** Records up to `end` are read, and those from `first` on are not delivered; none if both are equal. */
  #onSkipped(held, first, end) {
    const now = performance.now();
    if (this.#type === "QUEUE" && first < end) this.#acknowledger.acknowledgeRange(held, first, end);
    else if (now < held.skipReportedAt + SKIPPED_MS) return;
    else this.#acknowledgeSkipped(held, (held.skipReportedAt = now));
  }
  /** STREAM: acknowledge what was read and not delivered, unless a delivery is pending. */
  #acknowledgeSkipped(held) {
    if (this.#type !== "STREAM" || this.#isStopping || !held.isReadable || held.queued || held.acknowledged < held.delivered) return;
    this.#acknowledger.acknowledgeUpTo(held, held.next);
    held.delivered = held.acknowledged;
  }
  /** Return the revoked segments that are finished: everything is processed and stored, or the time for that is up. */
  #finished(now) {
    return this.#holdings.all.filter((held) => {
      if (!held.revokedAt || now - held.revokedAt > this.#membership.finishMs) return held.revokedAt > 0 && !held.hasUnstoredFailure;
      if (held.ahead > 0 || !this.#callbacks.revoked(held, held.revokedAt + this.#membership.finishMs - now)) return false; // `ahead`: of handlers of `run`
      const isProcessed = held.open.size === 0 && (this.#type !== "STREAM" || held.isDone);
      return isProcessed && held.pending.size === 0;
    });
  }
}
