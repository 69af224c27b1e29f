// Names what one consumer reads of a segment: all of it, or a range of its key buckets.

export const KEY_BUCKETS = 16; // of each segment, so many consumers at most share one

/** The keys of one segment whose bucket is `firstBucket` up to, not including, `endBucket`. */
export class BucketRange {
  constructor(segment, firstBucket, endBucket) {
    Object.freeze(Object.assign(this, { segment, firstBucket, endBucket }));
  }
  /** With its last bucket, such as "3[0-7]". */
  toString() {
    const last = this.endBucket - 1;
    return `${this.segment}[${this.firstBucket === last ? last : `${this.firstBucket}-${last}`}]`;
  }
}
/** Return the range that a grant or a revocation names; 0, 0 are all buckets. */
export function rangeOf({ segment, first_bucket: first = 0n, end_bucket: end = 0n }) {
  return new BucketRange(segment, Number(first), Number(end) || KEY_BUCKETS);
}
export const isWhole = ({ firstBucket, endBucket }) => firstBucket === 0 && endBucket === KEY_BUCKETS;
export const overlap = (one, other) =>
  one.segment === other.segment && one.firstBucket < other.endBucket && other.firstBucket < one.endBucket;
