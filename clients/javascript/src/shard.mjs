// One shard as a client sees it: which leader to believe, and requests that are repeated until it replies.
//
// Any program can forge an announcement, so an announcement is only a reason to ask.
import { HeadgateError, rejection, warn } from "./errors.mjs";
import { jittered, sleep } from "./waiting.mjs";

const [REPLY_MS, LONGEST_REPLY_MS] = [5000, 16_000];
const [FIRST_PAUSE_MS, LONGEST_PAUSE_MS] = [25, 1000];
const SILENT_MS = 10_000; // before the program is warned that no leader answers
const max = (a, b) => (a > b ? a : b);

export class Shard {
  epoch = 0n; // of the leader that is believed, because it has replied
  window = 0n; // of that leader; 0: none has replied
  newestEpoch = 0n; // at least `epoch`; higher if a push came from a later term
  onLeader = () => {}; // another leader is believed
  onSameLeader = () => {}; // the believed one has replied to a question
  onReconnect = () => {}; // the connection was lost, or is there again
  onHead = () => {};
  #connection;
  #question = null; // the present question who leads
  #heardEpoch = 0n; // the highest epoch that a question has to name
  #answeredAt = -1000; // when a leader answered the last one
  #asked = []; // request ids of its attempts
  #isClosed = false;

  constructor(connection, number) {
    this.#connection = connection;
    this.number = number;
  }
  get connected() { return this.#connection.session !== null; }
  close = () => (this.#isClosed = true);
  send = (body, onReply, epoch = this.epoch) => this.#connection.send(this.number, body, epoch, onReply);
  forget = (ids) => ids.forEach((id) => this.#connection.replies.delete(id));
  onAnnouncement = ({ leader_epoch, window }) => (leader_epoch !== this.epoch || window !== this.window) && this.whoLeads(leader_epoch);
  /** Ask until a leader replies. A flood of announcements makes one question a second. */
  async whoLeads(heard = 0n) {
    this.#heardEpoch = max(this.#heardEpoch, heard);
    if (this.#question) return;
    const question = (this.#question = {});
    await sleep(this.#answeredAt + 1000 - performance.now());
    let askedAt = performance.now();
    for (let pauseMs = 100; this.#question === question && !this.#isClosed; pauseMs = Math.min(2 * pauseMs, 5000)) {
      const believed = this.epoch;
      const body = { type: "describe_leader", heard_epoch: max(this.#heardEpoch, believed) };
      this.#asked.push(this.send(body, (reply) => this.#onAnswer(reply, believed), null));
      await sleep(pauseMs);
      if (!this.connected) askedAt = performance.now();
      if (this.#question === question && this.connected && !this.#isClosed && performance.now() > askedAt + SILENT_MS)
        warn("leader", `no leader of shard ${this.number} has answered for ${SILENT_MS / 1000} s: this client waits; is a daemon running?`);
    }
  }
  #onAnswer({ leader_epoch, body }, believedThen) {
    if (body.type !== "leader") return;
    if (leader_epoch < this.epoch && believedThen !== this.epoch) return; // it proved itself, but not against this belief
    this.forget(this.#asked.splice(0));
    this.#question = null;
    this.#answeredAt = performance.now();
    this.#heardEpoch = this.newestEpoch = leader_epoch;
    this.window = body.window;
    if (leader_epoch === this.epoch) return this.onSameLeader();
    this.epoch = leader_epoch;
    this.onLeader();
  }
  /** Send `body` until the leader replies, `deadline` at the latest; return its answer with its epoch. Throws a refusal that is final. */
  async ask(body, deadline = Infinity) {
    const connection = this.#connection;
    const [ids, call] = [[], { reply: null, last: null }];
    try {
      for (let pauseMs = FIRST_PAUSE_MS, waitMs = REPLY_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
        if (connection.failure) throw connection.failure;
        if (performance.now() >= deadline) throw new HeadgateError(`no leader of shard ${this.number} answers`);
        const [epoch, session, attempt] = [this.epoch, connection.session, {}];
        const isSame = () => epoch === this.epoch && session === connection.session && !connection.failure;
        Object.assign(call, { reply: null, last: attempt });
        ids.push(this.send(body, (reply) => this.#onReply(reply, epoch, attempt, call)));
        const until = Math.min(performance.now() + waitMs, deadline);
        while (!call.reply && isSame() && performance.now() < until) await connection.changed.wait(until - performance.now());
        const { leader_epoch, body: answer } = call.reply ?? {};
        if (answer?.type === "rejected" && !["not_leader", "unavailable"].includes(answer.verdict)) throw rejection(answer);
        if (answer && answer.type !== "rejected") return { ...answer, epoch: leader_epoch };
        if (!answer && !isSame()) continue; // another leader or connection: no reason to wait
        if (!answer) waitMs = Math.min(2 * waitMs, LONGEST_REPLY_MS);
        if (!answer || leader_epoch > epoch) this.whoLeads(leader_epoch);
        await sleep(jittered(pauseMs));
      }
    } finally {
      this.forget(ids);
    }
  }
  #onReply({ leader_epoch, body }, epochThen, attempt, call) {
    if (leader_epoch < epochThen) return; // from a deposed leader
    if (body.type === "rejected" ? attempt === call.last : leader_epoch === this.epoch) call.reply = { leader_epoch, body };
  }
}
