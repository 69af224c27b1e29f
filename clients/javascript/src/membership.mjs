// One consumer's membership of its subscription: registration, heartbeats and confirmations, one after the other.
import { hostname } from "node:os";
import { warn } from "./errors.mjs";
import { sleep } from "./waiting.mjs";

const POLL_MS = 1000;
const FORBIDDEN_MS = 30_000; // a right may be given back: an access file is soon corrected
const unconfirmed = (error) => (error.verdict ? warn("confirmation", `segments are not confirmed: ${error.message}`) : Promise.reject(error)); // the leader ends it
const clocks = () => [performance.now(), Date.now()]; // the first one pauses while a machine sleeps, the second one may be set

export class Membership {
  policy = {}; // of failed deliveries
  asked = false; // whether the program has asked for a record since the last heartbeat that was answered
  head = 0n; // the newest chunk that was announced, or that a reply stated
  provenHead = 0n; // the newest one that a reply stated
  mustRegister = true;
  finishMs = 20_000; // how long the records of a revoked segment can be acknowledged
  #leaseMs = 0; #leaseEndsAt = [Infinity, Infinity]; // by each of `clocks`; infinite before the first registration
  subscriptionId; // since the first registration
  deadLetters; // their sender
  resumption; // of parked keys
  #heartbeatMs; #heartbeatAt = 0;
  #asksUnread = false; // whether the next heartbeat does
  #unread = null; // the reply to the last one that did
  #forbiddenSince = 0;
  /** `parts`: connection, shard, holdings, history, options of the registration, and `names`, which every request names. */
  constructor(parts) {
    Object.assign(this, parts);
    this.shard.onHead = (head) => head > this.head && (this.head = head);
    this.shard.onLeader = this.shard.onReconnect = () => (this.mustRegister = true);
    this.connection.onPush = (push) => this.#onPush(push);
  }
  /** Whether no other consumer can have the segments. */
  get mayDeliver() {
    return performance.now() < this.#leaseEndsAt[0] && Date.now() < this.#leaseEndsAt[1];
  }
  #extendLease(askedAt) {
    this.#leaseEndsAt = askedAt.map((at) => at + this.#leaseMs);
  }
  /** Send a request until the leader replies. Its points of history, if it carries any, are confirmed then. */
  async ask(type, fields = {}, withHistory = false) {
    const history = withHistory ? this.history.points : [];
    const answer = await this.shard.ask({ type, ...this.names, ...fields, ...(withHistory && { history }) });
    this.history.confirmed(history);
    if (answer.term_id) this.history.add(answer.head, answer.term_id);
    if (answer.head > this.provenHead) this.provenHead = answer.head;
    if (this.provenHead > this.head) this.head = this.provenHead;
    return answer;
  }
  /** Keep the registration, and confirm what `finished` returns, until `isEnding` returns true. */
  async run(finished, isEnding) {
    while (!this.connection.failure && !isEnding()) {
      const now = performance.now();
      const released = [...this.holdings.unheld, ...finished(now)].slice(0, 250).map(({ segment, generation }) => [segment, generation]);
      if (this.mustRegister || now >= this.#heartbeatAt) await this.#renew(now);
      else if (released.length) this.holdings.confirmed(released, await this.ask("confirm_revoked", { released }).catch(unconfirmed));
      else await this.connection.changed.wait(Math.min(this.#heartbeatAt - now, POLL_MS));
    }
  }
  async #renew(now) {
    try {
      await (this.mustRegister ? this.register() : this.#heartbeat(now));
      this.#forbiddenSince = 0;
    } catch (error) {
      this.#forbiddenSince ||= now;
      if (error.verdict !== "forbidden" || now - this.#forbiddenSince > FORBIDDEN_MS) throw error;
      this.mustRegister = true;
      await sleep(POLL_MS);
    }
  }
  async register() {
    this.mustRegister = false;
    const askedAt = clocks();
    this.holdings.registrationRequested();
    const fields = { ...this.options, subscription_id: this.subscriptionId, host: hostname().slice(0, 128) };
    const positions = this.holdings.ownPositions;
    if (positions.length) Object.assign(fields, { positions, positions_topic_id: this.topicId });
    const reply = await this.ask("register", fields, true); // fenced: another program has the name
    this.subscriptionId = reply.subscription_id;
    this.topicId = reply.topic_id;
    this.policy = reply.policy ?? {};
    this.#heartbeatMs = Number(reply.heartbeat_interval_seconds) * 1000;
    this.finishMs = (Number(reply.revoke_timeout_seconds ?? 30) * 2000) / 3;
    this.#leaseMs = Number(reply.lease_seconds ?? 30) * 1000;
    this.#extendLease(askedAt);
    this.mustRegister ||= !this.mayDeliver; // the reply was late
    this.holdings.registered(reply.grants, reply.epoch);
    this.hurry(); // the leader repeats what was lost or ignored before
  }
  /** Send the next heartbeat at once. */
  hurry() {
    this.#heartbeatAt = 0;
    this.connection.changed.notify();
  }
  /** Return the reply to a heartbeat, which says how many segments nothing reads; null: `isEnding` returned true. */
  async askUnread(isEnding) {
    this.#unread = null;
    this.#asksUnread = true;
    this.hurry();
    while (!this.#unread && !this.connection.failure && !isEnding()) await this.connection.changed.wait(POLL_MS);
    return this.#unread;
  }
  async #heartbeat(now) {
    this.#heartbeatAt = now + this.#heartbeatMs;
    const held = this.holdings.all.map(({ segment, generation }) => [segment, generation]);
    const [ready, asks_unread, askedAt] = [this.asked, this.#asksUnread, clocks()];
    try {
      const reply = await this.ask("heartbeat", { held, ready, asks_unread, dead_letter_problem: this.deadLetters.problem }, true);
      if (ready) this.asked = false;
      if (asks_unread) [this.#unread, this.#asksUnread] = [reply, false];
      if (this.mayDeliver) this.#extendLease(askedAt);
      else this.mustRegister = true; // an answer to a heartbeat does not say what is still held
      this.policy = reply.policy ?? {};
      if (reply.resuming?.length) this.#heartbeatAt = Math.min(this.#heartbeatAt, now + POLL_MS);
      this.connection.guard(() => this.deadLetters.heard(reply));
      this.connection.guard(() => this.resumption.heard(reply, now));
    } catch (error) {
      if (error.verdict !== "out_of_order") throw error;
      this.holdings.dropAll(); // evicted while it was disconnected
      this.mustRegister = true;
    }
  }
  #onPush(push) {
    const { names, shard } = this;
    if (["consumer", "subscription", "topic", "incarnation"].some((name) => push[name] !== names[name])) return;
    if (push.leader_epoch < shard.newestEpoch) return;
    if (push.leader_epoch > shard.newestEpoch) shard.whoLeads((shard.newestEpoch = push.leader_epoch));
    if (push.type !== "consumer_fenced") return this.holdings.changed(push);
    this.holdings.dropAll();
    this.mustRegister = true;
  }
}
