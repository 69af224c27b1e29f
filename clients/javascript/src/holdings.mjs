// Which segments, and which of their key buckets, a consumer holds, as the leader's messages say. Messages may be late,
// doubled, lost or reordered.
//
// A holding is named by its segment and its generation, because a consumer can hold several ranges of a segment. For any
// key bucket generations only rise, and it has one holder at a time.
import { KEY_BUCKETS, overlap, rangeOf } from "./bucket_range.mjs";
import { HeldSegment } from "./held_segment.mjs";

const MOST_FENCED = 1000; // a broker does not delay a grant any longer
const nameOf = ({ segment, generation }) => `${segment}/${generation}`;

export class Holdings {
  size = 0;
  unheld = []; // revocations of what it does not hold, to be confirmed
  positions; // CHECKPOINT: segment → next offset, of every segment that was granted
  own; // segments whose position no other consumer has taken over
  onGranted = () => {};
  onRevoked = () => {}; // asked to finish
  onDropped = () => {};
  #bySegment = new Map(); // segment → its HeldSegments
  #released = new Map(); // segment → by bucket, the highest generation that was revoked or confirmed
  #fenced = new Set(); // names of grants that have ended before they arrived: the leader cannot name their buckets
  #grantedSince = new Set(); // names of what a push granted since the registration was requested
  #known = new Set(); // holdings before the registration was requested, also those that `dropAll` has dropped
  #early = []; // pushes before the first registration
  #registered = false;
  #keepsPositions;

  constructor(type, positions = new Map(), own = []) {
    this.#keepsPositions = type === "CHECKPOINT";
    this.positions = positions;
    this.own = new Set(own);
  }
  get all() { return [...this.#bySegment.values()].flat(); }
  get segments() { return [...this.#bySegment.keys()]; }
  /** CHECKPOINT: [segment, position] of those that are this consumer's to bring to the end. */
  get ownPositions() {
    const own = this.#keepsPositions ? [...this.positions].filter(([segment]) => this.own.has(segment)) : [];
    return own.sort(([a], [b]) => Number(a - b)).slice(-10_000);
  }
  /** Return the holding of a record that was delivered, or that a message names; undefined: it has ended. */
  of = ({ segment, generation }) => this.#bySegment.get(segment)?.find((held) => held.generation === generation);
  registrationRequested() {
    this.#grantedSince.clear();
    this.all.forEach((held) => this.#known.add(held));
  }
  registered(grants, epoch) {
    this.#registered = true;
    for (const push of this.#early.splice(0))
      if (push.leader_epoch === epoch) push.revoked?.forEach((each) => this.#revoke(each));
    const kept = new Set([...grants.map(nameOf), ...this.#grantedSince]);
    const isGone = (held) => !kept.has(nameOf(held)) && (held.dropped || !held.revokedAt);
    for (const held of [...this.#known].filter(isGone)) this.#release(held); // a late copy of its grant begins nothing
    this.#known.clear();
    for (const held of this.all) if (isGone(held)) this.#drop(held);
    for (const grant of grants) this.#grant(grant);
    this.own = new Set(this.segments);
  }
  changed(push) {
    if (!this.#registered) return void this.#early.push(push);
    push.revoked?.forEach((revocation) => this.#revoke(revocation));
    for (const grant of push.granted ?? []) {
      this.#grantedSince.add(nameOf(grant));
      this.#grant(grant);
    }
  }
  /** The leader has the confirmations of [segment, generation]. */
  confirmed(released) {
    const names = new Set(released.map(([segment, generation]) => nameOf({ segment, generation })));
    this.unheld = this.unheld.filter((each) => !names.has(nameOf(each)));
    for (const held of this.all.filter((each) => names.has(nameOf(each)))) {
      this.#release(held);
      this.#drop(held);
      this.own.delete(held.segment);
    }
  }
  dropAll() {
    for (const held of this.all) this.#drop((this.#known.add(held), held));
  }
  #grant(grant) {
    const [{ segment, generation }, range] = [grant, rangeOf(grant)];
    const overlapping = this.#overlapping(range);
    const isOutdated = this.#releasedIn(range) >= generation || overlapping.some((held) => held.generation >= generation);
    if (isOutdated || this.#fenced.has(nameOf(grant))) return;
    overlapping.forEach((held) => this.#drop(held)); // another consumer may have had its buckets meanwhile
    const held = new HeldSegment(grant, this.#keepsPositions ? this.positions.get(segment) : undefined);
    this.#bySegment.set(segment, [...(this.#bySegment.get(segment) ?? []), held]);
    this.size++;
    if (this.#keepsPositions) this.positions.set(segment, held.next);
    this.own.add(segment);
    this.onGranted(held);
  }
  #revoke(revocation) {
    const { segment, generation, final } = revocation;
    const [held, range] = [this.of(revocation), rangeOf(revocation)];
    if (held && !final) return this.onRevoked(held, (held.revokedAt ||= performance.now()));
    if (held) this.#release(held);
    if (held) return this.#drop(held);
    if (final) return this.#noteFenced(nameOf(revocation));
    const overlapping = this.#overlapping(range);
    if (this.#releasedIn(range) > generation || overlapping.some((each) => each.generation > generation)) return;
    overlapping.forEach((each) => this.#drop(each));
    this.#release({ range, generation });
    this.unheld.push({ segment, generation });
  }
  #noteFenced(name) {
    this.#fenced.add(name);
    for (const oldest of this.#fenced) if (this.#fenced.size > MOST_FENCED) this.#fenced.delete(oldest);
  }
  #overlapping = (range) => (this.#bySegment.get(range.segment) ?? []).filter((held) => overlap(held.range, range));
  /** Return the highest generation that was released of any of these buckets. */
  #releasedIn({ segment, firstBucket, endBucket }) {
    const released = this.#released.get(segment)?.slice(firstBucket, endBucket) ?? [];
    return released.reduce((a, b) => (a > b ? a : b), -1n);
  }
  #release({ range: { segment, firstBucket, endBucket }, generation }) {
    const released = this.#released.get(segment) ?? Array(KEY_BUCKETS).fill(-1n);
    for (let bucket = firstBucket; bucket < endBucket; bucket++) if (released[bucket] < generation) released[bucket] = generation;
    this.#released.set(segment, released);
  }
  #drop(held) {
    held.dropped = true;
    this.size--;
    const left = this.#bySegment.get(held.segment).filter((each) => each !== held);
    if (left.length) this.#bySegment.set(held.segment, left);
    else this.#bySegment.delete(held.segment);
    this.onDropped(held);
  }
}
