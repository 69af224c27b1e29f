// Waits that a change ends early.

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const jittered = (ms) => ms * (0.5 + Math.random() / 2); // so that clients do not act at once

export class Signal {
  #waiters = new Set();
  /** Wait until `notify`, or for `ms` at most. */
  wait(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(() => wake(), Math.max(1, Math.min(ms, 2 ** 31 - 1)));
      const wake = () => this.#waiters.delete(wake) && resolve(clearTimeout(timer));
      this.#waiters.add(wake);
    });
  }
  notify = () => [...this.#waiters].forEach((wake) => wake());
}
