// One parked key of a held segment: whether it is being resumed, and how far.

export class ParkedKey {
  isResuming = false; // its parked records are delivered
  isHeld = false; // its next record waits, and is not parked
  storedAt = -Infinity; // when the dead-letter topic last had further records of the key, or all of them
  problem = null; // why the last step of the resumption failed
  queued = 0n; // while it is being resumed: number of the last record that was queued; the next two likewise
  delivered = 0n;
  acknowledged = 0n;
  #expected = []; // numbers that were queued and not taken. The queue may have others, of a resumption that has ended

  /** `queuedEnd`: offset after the last record of the segment that was queued before. `parkedAt`: what the leader said earlier is outdated. */
  constructor(queuedEnd, parkedAt) {
    Object.assign(this, { queuedEnd, parkedAt });
  }
  /** Whether everything that was delivered is acknowledged. */
  get isAcknowledged() {
    return !this.isResuming || this.acknowledged >= this.delivered;
  }
  /** Deliver the records behind `number`. While they are delivered, a command may drop some. */
  resume(number) {
    this.isResuming = true;
    for (const at of ["queued", "delivered", "acknowledged"]) if (this[at] < number) this[at] = number;
    this.#expected = this.#expected.filter((each) => each > number);
  }
  /** Note that a record is queued for the program. */
  expect(number) {
    this.queued = number;
    this.#expected.push(number);
  }
  /** Return whether the record that leaves the queue is the next one; then it is delivered. */
  takes(number) {
    if (this.#expected[0] !== number) return false;
    this.delivered = this.#expected.shift();
    return true;
  }
  /** Return whether a record was delivered by the present resumption, and is not acknowledged. */
  isDelivered = (number) => this.isResuming && this.acknowledged < number && number <= this.delivered;
  /** The record was not begun: its segment is revoked, or the consumer stops. */
  giveBack(number) {
    if (number <= this.delivered) this.delivered = number - 1n;
  }
  /** Deliver no more of its records. Return the state of the next resumption: what this one has read may wait for space. */
  end(parkedAt = this.parkedAt) {
    this.isResuming = this.isHeld = false;
    return new ParkedKey(this.queuedEnd, parkedAt);
  }
}
