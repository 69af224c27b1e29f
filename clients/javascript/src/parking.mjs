// The parked keys of a STREAM consumer: parks keys, and acknowledges the records that are parked or resumed.
//
// 1. A key is parked once the leader has stored that it is, for this and every later holder of its segment.
// 2. A record of a parked key is not delivered. The acknowledgement that covers it names it: both count together. The
//    leader has it sent to the dead-letter topic, and other keys continue.
// 3. A resumed record that fails again parks its key again. It, and those behind it, stay where they are.
import { RequestRejectedError, reasonText } from "./errors.mjs";
import { keyText } from "./held_segment.mjs";

const LONGEST_KEY_BYTES = 256;

export class Parking {
  /** `parts`: membership, feed and acknowledger of the consumer, and `acknowledgeUpTo`, which also covers parked records. */
  constructor(parts) {
    Object.assign(this, parts);
    this.feed.onParked = (held, record) => this.divert(held, record);
  }
  /** Park the key of a record, and the record with it. RequestRejectedError: it cannot be parked. */
  async park(held, record, reason) {
    const { offset, key, parkedNumber } = record;
    const state = held.parkedKey(key);
    if (parkedNumber) {
      if (state?.isDelivered(parkedNumber)) await this.#parkAgain(held, state, record, reason);
    } else if (offset >= held.acknowledged) {
      if (!state) await this.#request(held, record, reason);
      if (!state && !held.dropped) held.addParkedKey(key, performance.now());
      if (!held.dropped) this.divert(held, record);
    }
  }
  /** Rule 3. */
  async #parkAgain(held, state, record, reason) {
    await this.#request(held, record, reason);
    held.parkedKeys.set(keyText(record.key), state.end(performance.now()));
    this.feed.space.notify();
  }
  async #request(held, { segment, generation, offset, key, parkedNumber: number }, reason) {
    if (key.length > LONGEST_KEY_BYTES) throw new RequestRejectedError(`invalid: a key of ${key.length} bytes cannot be parked: at most ${LONGEST_KEY_BYTES}`, "invalid");
    const fields = { segment, generation, offset, key, number, reason: reasonText(reason) };
    held.parking.add(keyText(key));
    try {
      await this.membership.ask("park_key", fields, true);
    } finally {
      held.parking.delete(keyText(key));
    }
  }
  /** Rule 2. */
  divert(held, { offset, key }) {
    held.parked.set(offset, key);
    this.acknowledgeUpTo(held, held.acknowledged);
  }
  /** Acknowledge a record that was resumed, and those of its key before it. */
  acknowledge(held, { key, parkedNumber }) {
    const state = held.parkedKey(key);
    if (!state?.isDelivered(parkedNumber)) return;
    state.acknowledged = parkedNumber;
    this.acknowledger.acknowledgeResumed(held, key, parkedNumber);
  }
}
