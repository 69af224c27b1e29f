// Which segments a consumer holds, as the leader's messages say. Messages may be late, doubled, lost or reordered.
import { HeldSegment } from "./held_segment.mjs";

const max = (a, b) => (a > b ? a : b);

export class Holdings {
  bySegment = new Map(); // segment → HeldSegment
  unheld = []; // revocations of segments that it does not hold, to be confirmed
  positions; // CHECKPOINT: segment → next offset, of every segment that was granted
  own; // segments whose position no other consumer has taken over
  onGranted = () => {};
  onRevoked = () => {}; // asked to finish
  onDropped = () => {};
  #released = new Map(); // segment → the highest generation that was revoked or confirmed
  #grantedSince = new Set(); // segments that a push granted since the registration was requested
  #known = new Set(); // holdings before the registration was requested, also those that `dropAll` has dropped
  #early = []; // pushes before the first registration
  #registered = false;
  #keepsPositions;

  constructor(type, positions = new Map(), own = []) {
    this.#keepsPositions = type === "CHECKPOINT";
    this.positions = positions;
    this.own = new Set(own);
  }
  get all() {
    return [...this.bySegment.values()];
  }
  /** CHECKPOINT: [segment, position] of those that are this consumer's to bring to the end. */
  get ownPositions() {
    const own = this.#keepsPositions ? [...this.positions].filter(([segment]) => this.own.has(segment)) : [];
    return own.sort(([a], [b]) => Number(a - b)).slice(-10_000);
  }
  /** Return the holding of a record that was delivered; undefined: it has ended. */
  of({ segment, generation }) {
    const held = this.bySegment.get(segment);
    return held?.generation === generation ? held : undefined;
  }
  registrationRequested() {
    this.#grantedSince.clear();
    this.all.forEach((held) => this.#known.add(held));
  }
  registered(grants, epoch) {
    this.#registered = true;
    for (const push of this.#early.splice(0))
      if (push.leader_epoch === epoch) push.revoked?.forEach((each) => this.#revoke(each));
    const listed = new Map(grants.map(({ segment, generation }) => [segment, generation]));
    const isGone = ({ segment, generation, revokedAt, dropped }) =>
      listed.get(segment) !== generation && (dropped || !revokedAt) && !this.#grantedSince.has(segment);
    for (const held of [...this.#known].filter(isGone)) // a late copy of its grant begins nothing
      this.#released.set(held.segment, max(this.#released.get(held.segment) ?? -1n, held.generation));
    this.#known.clear();
    for (const held of this.all) if (isGone(held)) this.#drop(held);
    for (const grant of grants) this.#grant(grant);
    this.own = new Set(this.bySegment.keys());
  }
  changed(push) {
    if (!this.#registered) return void this.#early.push(push);
    push.revoked?.forEach((revocation) => this.#revoke(revocation));
    push.granted?.forEach((grant) => this.#grant(grant) && this.#grantedSince.add(grant.segment));
  }
  /** The leader has the confirmations of [segment, generation]. */
  confirmed(released) {
    const isReleased = (each) => released.some(([segment, generation]) => each.segment === segment && each.generation === generation);
    this.unheld = this.unheld.filter((each) => !isReleased(each));
    for (const held of this.all.filter(isReleased)) {
      this.#release(held);
      this.own.delete(held.segment);
    }
  }
  dropAll() {
    for (const held of this.all) this.#drop((this.#known.add(held), held));
  }
  #grant(grant) {
    const { segment, generation } = grant;
    const before = this.bySegment.get(segment);
    if (generation <= max(this.#released.get(segment) ?? -1n, before?.generation ?? -1n)) return false;
    this.#drop(before);
    const held = new HeldSegment(grant, this.#keepsPositions ? this.positions.get(segment) : undefined);
    this.bySegment.set(segment, held);
    if (this.#keepsPositions) this.positions.set(segment, held.next);
    this.own.add(segment);
    this.onGranted(held);
    return true;
  }
  #revoke({ segment, generation, final }) {
    const held = this.bySegment.get(segment);
    if (generation < max(this.#released.get(segment) ?? -1n, held?.generation ?? -1n)) return;
    if (held?.generation === generation && !final) return this.onRevoked(held, (held.revokedAt ||= performance.now()));
    this.#release({ segment, generation });
    if (!final) this.unheld.push({ segment, generation });
  }
  #release({ segment, generation }) {
    this.#released.set(segment, generation);
    this.#drop(this.bySegment.get(segment));
  }
  #drop(held) {
    if (!held) return;
    held.dropped = true;
    this.bySegment.delete(held.segment);
    this.onDropped(held);
  }
}
