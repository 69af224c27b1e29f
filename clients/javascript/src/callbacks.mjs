// Notifies the program of the segments that it holds: `onGranted` before their first record, `onRevoked` when they go.
//
// Each segment that `onGranted` was called with is one that `onRevoked` is called with, once. One call runs at a time, in
// the order of the leader's messages. A callback that throws ends the consumer.

const SHORTEST_MS = 5000; // for the last calls, however little time is left

export class Callbacks {
  #turn = Promise.resolve(); // ends with the last call
  #ended = new WeakMap(); // holdings that `onRevoked` was called for → whether that call has ended
  /** `guard` ends the consumer with the error of a callback, and `progressed` is called after each `onRevoked`. */
  constructor({ onGranted, onRevoked }, guard, progressed) {
    Object.assign(this, { onGranted, onRevoked, guard, progressed });
  }
  /** Return when the segment may be read. */
  granted = ({ slice }) => (this.onGranted ? this.#call(() => this.onGranted(slice)) : null);
  /** Call `onRevoked` unless that was done; return whether it has ended. `msLeft` 0: another consumer may read it already. */
  revoked(held, msLeft) {
    if (!this.onRevoked || this.#ended.has(held)) return this.#ended.get(held) ?? true;
    this.#ended.set(held, false);
    this.#call(() => this.onRevoked(held.slice, Math.max(0, msLeft))).then(() => {
      this.#ended.set(held, true);
      this.progressed();
    });
    return false;
  }
  /** Notify that every segment of `all` goes; ends with the last call, or when the time is up. */
  async end(all, msLeft) {
    for (const held of all) this.revoked(held, msLeft);
    let timer;
    const limit = new Promise((resolve) => (timer = setTimeout(resolve, Math.max(msLeft, SHORTEST_MS))));
    await Promise.race([this.#turn, limit]).finally(() => clearTimeout(timer));
  }
  #call = (callback) => (this.#turn = this.#turn.then(() => this.guard(callback)));
}
