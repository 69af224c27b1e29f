// What a consumer holds by one grant, a segment or a range of its key buckets: how far it is read, delivered and acknowledged.
import { isWhole, rangeOf } from "./bucket_range.mjs";
import { bucketOf } from "./hashing.mjs";
import { ParkedKey } from "./parked_key.mjs";

const [MOST_PARKED, MOST_PENDING] = [10_000, 100_000]; // that are not stored; beyond it nothing more is read of the segment

export const keyText = (key) => Buffer.from(key).toString("latin1");
/** Return the bytes of a record, without what it takes in memory besides. */
export const bytesIn = ({ key, value, headers }) => (headers ?? []).reduce((sum, header) => sum + header.name.length + header.value.length, key.length + value.length);

export class HeldSegment {
  revokedAt = 0; // when to finish it was asked; 0: not yet
  dropped = false; // another consumer may read it
  queued = 0; // records that are read, and that the program has not taken; resumed ones do not count, here and in the next two
  queuedEnd; // offset after the last record that was queued
  atEndMs = -Infinity; // when it had last been read as far as chunks were known
  takenEnd; // offset after the last one of them that was taken from the queue
  full = false; // the leader keeps no more failed or parked records of it
  paused = false; // `run` is far enough ahead
  isGivenBack = false; // what is behind `delivered` may have been read and given back: how far it is read proves nothing
  pending = new Map(); // what is acknowledged and not stored: see acknowledger.mjs
  open = new Map(); // QUEUE: offset → {delivery, bucket, deadline} of a delivery that has not ended
  retrying = new Set(); // QUEUE: offsets of records that have failed, and that are not acknowledged since
  parked = new Map(); // STREAM: offset → key of a record that its acknowledgement parks
  parkedKeys; // STREAM: text of a key whose records are not delivered → ParkedKey
  parking = new Set(); // STREAM: texts of keys that this consumer asks to park
  resumed = new Map(); // STREAM: text of a key → {key, number} of its resumed records that are acknowledged and not stored
  unpassed = []; // of `run`, in order: works that are not below the low-water mark
  ahead = 0; // of `run`: records beyond the mark; QUEUE: that are not handled
  aheadBytes = 0;
  lastBegun = -1n; // of `run`: the highest offset that a handler was called for
  range; // the BucketRange that is held
  checksKeys; // whether it depends on a record's key bucket who reads it, or whether it is acknowledged
  skippedFrom = null; // the first of the records that were read last and are not delivered, if the keys are checked
  skipReportedAt = -Infinity; // STREAM: when such records were last acknowledged
  #ranges; // {first, end, from, acknowledged, at}: what is acknowledged already, by bucket
  /** Read from `start` on. The grant states the chunk of its own start only. */
  constructor(grant, start = grant.start_offset) {
    const { segment, generation, start_offset, start_chunk, end_offset = null, starts = [] } = grant;
    Object.assign(this, { segment, generation, grant, end: end_offset, next: start });
    this.range = rangeOf(grant);
    this.checksKeys = !isWhole(this.range) || starts.length > 0;
    this.chunk = start >= start_offset ? start_chunk : 1n;
    this.delivered = this.acknowledged = this.stored = start; // the offsets after the last ones; acknowledged and stored: STREAM
    this.queuedEnd = this.takenEnd = start;
    this.failed = new Set((grant.failed ?? []).map(([offset]) => offset));
    this.parkedKeys = new Map((grant.parked ?? []).map((key) => [keyText(key), new ParkedKey(start, -Infinity)]));
    this.#ranges = starts.map(([first, end, from, acknowledged = []]) => ({ first, end, from, acknowledged, at: 0 }));
    this.#ranges.push({ first: 0, end: Infinity, from: start, acknowledged: grant.acknowledged ?? [], at: 0 });
  }
  /** What callbacks of the program are called with: the number of a whole segment, or the range. */
  get slice() { return isWhole(this.range) ? this.segment : this.range; }
  get isFull() {
    return this.full || this.parked.size >= MOST_PARKED || this.pending.size >= MOST_PENDING;
  }
  get isReadable() { return !this.revokedAt && !this.dropped && !this.isGivenBack; }
  get hasUnstoredFailure() {
    return [...this.pending.values()].some(({ named }) => named);
  }
  get isAtEnd() { return this.end !== null && this.next >= this.end; }
  /** STREAM: whether everything that was delivered is acknowledged, resumed records included. */
  get isDone() {
    return this.acknowledged >= this.delivered && [...this.parkedKeys.values()].every((each) => each.isAcknowledged);
  }
  /** Return the ParkedKey of a key that is parked. */
  parkedKey = (key) => (this.parkedKeys.size > 0 ? this.parkedKeys.get(keyText(key)) : undefined);
  addParkedKey(key, parkedAt) {
    const state = new ParkedKey(this.queuedEnd, parkedAt);
    this.parkedKeys.set(keyText(key), state);
    return state;
  }
  /** Return whether a record of a key waits to be stored as parked. */
  hasUnstoredParked = (key) => [...this.parked.values()].some((each) => keyText(each) === keyText(key));
  /** Return whether a record is not this grant's to deliver: in another bucket, or acknowledged. Offsets have to rise. */
  skips(offset, key) {
    const bucket = this.checksKeys ? bucketOf(key) : 0;
    if (bucket < this.range.firstBucket || this.range.endBucket <= bucket) return true;
    const range = this.#ranges.find(({ first, end }) => first <= bucket && bucket < end);
    while (range.acknowledged[range.at]?.[1] <= offset) range.at++;
    return offset < range.from || range.acknowledged[range.at]?.[0] <= offset;
  }
}
