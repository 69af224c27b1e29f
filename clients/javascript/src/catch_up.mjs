// Finds when everything is read that was stored when a run began, and no segment of the subscription is left unread.
import { jittered } from "./waiting.mjs";

const [FIRST_PAUSE_MS, LONGEST_PAUSE_MS] = [50, 1000];

export class CatchUp {
  #goal = null; // the newest chunk at the begin
  #askAt = 0;
  #pauseMs = FIRST_PAUSE_MS;
  /** `parts`: membership, holdings, deliveries, deadLetters and resumption of the consumer. */
  constructor(parts) {
    Object.assign(this, parts);
  }
  /** Call it while no record is at work. `isEnding`: whether the program has stopped the consumer. */
  async isDone(isEnding) {
    if (performance.now() < this.#askAt || !this.#isRead()) return false;
    const reply = await this.membership.askUnread(isEnding);
    this.#askAt = performance.now() + jittered(this.#pauseMs);
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
    this.#goal ??= reply?.head ?? null;
    if (reply === null) return false;
    const isLeft = reply.unread || (reply.dead_letters?.length && !this.deadLetters.problem) || this.resumption.isUnderWay(reply);
    return !isLeft && this.#isRead();
  }
  /** Whether nothing is queued, everything that is acknowledged is stored, and no delivery is due. */
  #isRead() {
    const goal = this.#goal ?? -1n;
    const isRead = (held) => held.isReadable && !held.queued && !held.pending.size && (held.isAtEnd || held.chunk > goal);
    return this.holdings.all.every(isRead) && !this.deliveries.isDue;
  }
}
