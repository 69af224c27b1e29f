// One producer's identity on one shard: it numbers batches, sends them, and decides the outcome of each.
//
// 1. All sends of an attempt go to one leader epoch. A refusal, a loss or another leader ends the attempt. The next one
//    sends one batch alone, and all others once that is committed: the same records under the same sequences.
// 2. `committed` counts whenever it arrives, and for all earlier batches too. A refusal counts only in its own attempt.
//    A late `committed` shows that the leader is slow: what it got from this connection later is not sent again.
// 3. An attempt ends when its oldest batch has no reply for 5 s. If the leader replies to a question meanwhile, 250 ms
//    without any other reply are enough: what was sent was probably lost.
// 4. What leaves a gap (a batch that is refused for good, or a history that the leader has lost) closes the epoch. The
//    reply to the opening of the next one decides every batch that was sent, and only then batches are numbered again.
// 5. Batches with a source position are stored without a gap, because a program continues at the last position. After one that
//    is not stored, those behind it in its topic fail until the program asks for the position again. Each states the position
//    that it follows: the leader of an older ledger that was put back has another one.
// 6. An identity that has been idle is opened again before it is used: it may be forgotten.
import { randomBytes } from "node:crypto";
import { DeliveryFailedError, DeliveryUnknownError, rejection } from "./errors.mjs";
import { jittered } from "./waiting.mjs";

const [REPLY_MS, OVERDUE_MS, SWEEP_MS] = [5000, 250, 50];
const [FIRST_PAUSE_MS, LONGEST_PAUSE_MS] = [25, 1000];
const REMEMBERED_MS = 30_000; // for this long after a reply no producer is forgotten for being idle
const REFUSED = ["invalid", "forbidden", "quota_exceeded"];
const PROVEN = { placements: null, topicId: null, duplicate: false };
const behindGap = () => new DeliveryFailedError("an earlier batch with a source position is not stored: await sourcePosition(topic), and continue there");
const placement = ([segment, firstHash, lastHash, firstOffset, count]) => ({ segment, firstHash, lastHash, firstOffset, count });

export class ProducerSession {
  resent = 0; // batches that were sent again
  isOpen = false; // the identity can number batches
  failure = null;
  #shard; #named; #notify; #onFailure; #timer;
  #identity = null; // {producer_id, producer_epoch}
  #wanted = false; // an identity is wanted before there is a batch
  #token = null; // of the opening that is not answered; each attempt repeats it
  #openingAt = 0; #openingIds = []; // when it was sent, and its requests; 0: no opening is in flight
  #attempt = 0;
  #link = {}; // an object per leader and connection
  #hasEnded = true; // the attempt has ended, and the next one begins at `#pauseUntil`
  #isProven = false; // a batch was answered in this attempt: the window is open
  #pauseUntil = 0; #pauseMs = FIRST_PAUSE_MS; #overdueAt = Infinity; #lastReplyAt = 0;
  #inFlight = []; // {body, sequence, attempt, sentAt, link, ids, refusal, resolve, reject}, by sequence
  #queue = []; // those that have no sequence
  #sequence = 0; // of the next batch
  #gaps = new Set(); // topics; rule 5
  #positions = new Map(); // topic → the source position that its next batch follows
  /** `named`: its name, incarnation and secret, if any. `notify` is called after each change, `onFailure` with what ends every session of the producer. */
  constructor(shard, named, notify, onFailure) {
    this.#shard = shard;
    this.#named = named;
    this.#notify = notify;
    this.#onFailure = onFailure;
    shard.onLeader = shard.onReconnect = () => this.#endAttempt(0, (this.#link = {}));
    shard.onSameLeader = () => this.#isAwaiting && (this.#overdueAt = Math.min(this.#overdueAt, performance.now() + OVERDUE_MS));
    this.#timer = setInterval(() => this.#tick(performance.now()), SWEEP_MS);
  }
  get hasSpace() { return this.#inFlight.length + this.#queue.length < 2n * this.#shard.window; }
  /** Request an identity before there is a batch. */
  open() {
    this.#wanted = true;
    this.#advance();
  }
  /** Queue a batch; the promise has its outcome, no later than `deadline`. */
  offer(body, deadline) {
    return new Promise((resolve, reject) => {
      if (this.failure || this.#isBehindGap({ body })) return reject(this.failure ?? behindGap());
      const { topic, source_position } = body;
      if (source_position) body = { ...body, previous_position: this.#positions.get(topic) };
      if (source_position) this.#positions.set(topic, source_position);
      this.#queue.push({ body, deadline, resolve, reject, ids: [], attempt: 0 });
      this.#advance();
    });
  }
  /** The program asks for its position in a topic. DeliveryUnknownError: that may still change. */
  closeGap(topic) {
    const isOpen = [...this.#inFlight, ...this.#queue].some(({ body }) => body.source_position && body.topic === topic);
    if (isOpen) throw new DeliveryUnknownError("an earlier batch with a source position may still be stored");
    this.#gaps.delete(topic);
  }
  /** The leader has said where a topic's source continues. */
  continueAt = (topic, position) => void this.#positions.set(topic, position);
  #isBehindGap = ({ body }) => body.source_position && this.#gaps.has(body.topic);
  #fail(batch, error) {
    if (batch.body.source_position) this.#gaps.add(batch.body.topic);
    batch.reject(error);
    this.#queue = this.#queue.filter((each) => !this.#isBehindGap(each) || each.reject(behindGap()));
  }
  /** Report every batch: what was sent is unknown, and the rest not stored, unless a verdict says more. */
  end(error) {
    if (this.failure) return;
    this.failure = error;
    clearInterval(this.#timer);
    const [sent, queued] = error.verdict ? [error, error] : [new DeliveryUnknownError(error.message), new DeliveryFailedError(error.message)];
    for (const batch of this.#inFlight.splice(0)) this.#forget(batch).reject(sent);
    for (const batch of this.#queue.splice(0)) batch.reject(queued);
    this.#shard.forget(this.#openingIds.splice(0));
    this.#notify();
  }
  get #isAwaiting() {
    return this.#openingAt > 0 || this.#inFlight.some(({ attempt }) => attempt === this.#attempt);
  }
  #forget(batch) {
    this.#shard.forget(batch.ids.splice(0));
    return batch;
  }

  // Attempts

  #endAttempt(pauseMs) {
    this.#hasEnded = true;
    this.#openingAt = 0;
    this.#pauseUntil = performance.now() + pauseMs;
    this.#advance();
  }
  #failAttempt() {
    const pauseMs = jittered(this.#pauseMs);
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
    this.#endAttempt(pauseMs);
  }
  /** What was not sent is not stored. What was sent keeps its place: a later batch cannot overtake it. */
  #expire(now) {
    const late = this.#inFlight.filter(({ deadline, isLate }) => deadline <= now && !isLate);
    for (const batch of late) {
      batch.isLate = true;
      batch.reject(new DeliveryUnknownError("it was sent, and has no answer in time: it may be stored, also later"));
    }
    const isOver = ({ deadline }) => deadline <= now; // not only the first ones: topics wait for space side by side
    for (const batch of this.#queue.filter(isOver)) late.push(this.#fail(batch, new DeliveryFailedError("it was not sent in time")));
    this.#queue = this.#queue.filter((each) => !isOver(each));
    if (late.length) this.#notify();
  }
  #tick(now) {
    this.#expire(now);
    const oldest = this.#inFlight.find(({ attempt }) => attempt === this.#attempt);
    const sentAt = this.#openingAt || (oldest?.sentAt ?? Infinity);
    const isLate = !this.#hasEnded && this.#isAwaiting && now >= Math.min(sentAt + REPLY_MS, this.#overdueAt);
    if (!isLate) return this.#advance();
    this.#shard.whoLeads();
    this.#failAttempt();
  }
  /** Do what is possible now. */
  #advance(now = performance.now()) {
    const hasWork = this.#inFlight.length + this.#queue.length > 0 || (this.#wanted && !this.isOpen);
    if (this.failure || !hasWork || !this.#shard.connected || !this.#shard.window) return;
    if (this.#hasEnded) {
      if (now < this.#pauseUntil) return;
      this.#hasEnded = this.#isProven = false;
      this.#attempt++;
      this.#overdueAt = Infinity;
    }
    if (this.#queue.length && !this.#inFlight.length && now - this.#lastReplyAt > REMEMBERED_MS) this.isOpen = false;
    if (this.isOpen) this.#send(now);
    else if (!this.#openingAt) this.#requestIdentity(now);
  }
  #requestIdentity(now) {
    this.#token ??= randomBytes(16).toString("hex");
    this.#openingAt = now;
    const body = { type: "open_producer", token: this.#token, ...this.#named, ...this.#identity, accept_new: this.#identity !== null && !this.#named.name };
    const [attempt, epoch] = [this.#attempt, this.#shard.epoch];
    this.#openingIds.push(this.#shard.send(body, (reply) => this.#onOpened(reply, attempt, epoch)));
  }
  #send(now) {
    const limit = this.#isProven ? Number(this.#shard.window) : 1;
    for (const batch of this.#inFlight.slice(0, limit)) if (batch.attempt !== this.#attempt) this.#sendBatch(batch, now);
    while (this.#queue.length && this.#inFlight.length < limit) {
      const batch = this.#queue.shift();
      batch.sequence = this.#sequence++;
      this.#inFlight.push(batch);
      this.#sendBatch(batch, now);
    }
  }
  #sendBatch(batch, now) {
    if (batch.attempt) this.resent++;
    const sent = { attempt: this.#attempt, sentAt: now, link: this.#link };
    const [body, { epoch }] = [{ ...batch.body, ...this.#identity, sequence: batch.sequence }, this.#shard];
    Object.assign(batch, sent).ids.push(this.#shard.send(body, (reply) => this.#onReply(batch, reply, sent, epoch)));
  }

  // Replies

  #heard() {
    this.#lastReplyAt = performance.now();
    this.#overdueAt = Infinity;
  }
  #onReply(batch, { leader_epoch, body }, { attempt, link }, epoch) {
    if (body.type === "committed") this.#onCommitted(batch, body, link === this.#link && attempt < this.#attempt);
    else if (leader_epoch >= epoch && attempt === this.#attempt && !this.#hasEnded) this.#onRefused(batch, body, leader_epoch > epoch ? leader_epoch : 0n);
    this.#notify();
  }
  #onCommitted(batch, { placements, topic_id: topicId = null, duplicate = false }, isLate) {
    this.#heard();
    while (this.#inFlight.length && this.#inFlight[0].sequence <= batch.sequence) {
      const each = this.#forget(this.#inFlight.shift()); // earlier ones are durable too, even if their replies were lost
      each.resolve(each === batch ? { placements: placements?.map(placement) ?? null, topicId, duplicate } : PROVEN);
    }
    this.#pauseMs = FIRST_PAUSE_MS;
    const onTheirWay = isLate && !this.#hasEnded ? this.#inFlight.filter(({ link }) => link === this.#link) : [];
    for (const each of onTheirWay) Object.assign(each, { attempt: this.#attempt, sentAt: performance.now() });
    if (!this.#hasEnded && (onTheirWay.length || !this.#isAwaiting)) this.#isProven = true;
    this.#advance();
  }
  #onRefused(batch, rejected, newerEpoch) {
    const { verdict } = rejected;
    this.#link = {}; // what follows the batch is refused, too
    this.#heard();
    if (newerEpoch || verdict === "not_leader") this.#shard.whoLeads(newerEpoch);
    if (newerEpoch) return this.#failAttempt();
    if (verdict === "fenced") return this.#onFailure(rejection(rejected));
    if (REFUSED.includes(verdict)) batch.refusal = rejected; // a copy may be late: the opening decides
    const isLost = verdict === "forgotten" || (verdict === "out_of_order" && !this.#isProven);
    if (batch.refusal || isLost) this.isOpen = false;
    return batch.refusal ? this.#endAttempt(0) : this.#failAttempt();
  }
  #onOpened({ leader_epoch, body }, attempt, epoch) {
    if (body.type === "producer_identity") this.#onIdentity(body);
    else if (leader_epoch >= epoch && attempt === this.#attempt && this.#openingAt) {
      this.#heard();
      if (leader_epoch > epoch || body.verdict === "not_leader") this.#shard.whoLeads(leader_epoch);
      if (leader_epoch > epoch || !["fenced", "forgotten", ...REFUSED].includes(body.verdict)) this.#failAttempt();
      else this.#onFailure(rejection(body));
    }
    this.#notify();
  }
  /** Decide every batch that was sent, and number those from 0 that are not stored. */
  #onIdentity({ producer_id, producer_epoch, previous_next_sequence: reached = null }) {
    this.#heard();
    this.#shard.forget(this.#openingIds.splice(0));
    this.#identity = { producer_id, producer_epoch };
    this.isOpen = true;
    this.#token = null;
    this.#openingAt = this.#sequence = 0;
    const unsent = [];
    for (const batch of this.#inFlight.splice(0)) {
      const { refusal } = this.#forget(batch);
      if (reached === null) batch.reject(new DeliveryUnknownError("it was sent, and the leader has forgotten this producer since", "forgotten"));
      else if (batch.sequence < reached) batch.resolve(PROVEN);
      else if (refusal) this.#fail(batch, new DeliveryFailedError(`${refusal.verdict}: ${refusal.reason}`, refusal.verdict));
      else if (batch.isLate) this.#fail(batch); // it has its outcome, so the program may have sent it again
      else if (this.#isBehindGap(batch)) batch.reject(behindGap());
      else unsent.push(batch);
    }
    this.#queue.unshift(...unsent);
    this.#advance();
  }
}
