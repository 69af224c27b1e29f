// Where a key belongs: MurmurHash3, x86, 32 bits, seed 0.
import { KEY_BUCKETS } from "./bucket_range.mjs";

export function murmur3(bytes) {
  const rotl = (x, r) => (x << r) | (x >>> (32 - r));
  const mix = (k) => Math.imul(rotl(Math.imul(k, 0xcc9e2d51), 15), 0x1b873593);
  const whole = bytes.length & ~3;
  let h = 0;
  for (let i = 0; i < whole; i += 4) {
    const k = bytes[i] | (bytes[i + 1] << 8) | (bytes[i + 2] << 16) | (bytes[i + 3] << 24);
    h = (Math.imul(rotl(h ^ mix(k), 13), 5) + 0xe6546b64) | 0;
  }
  let tail = 0;
  for (let i = bytes.length - 1; i >= whole; i--) tail = (tail << 8) | bytes[i];
  h ^= mix(tail) ^ bytes.length;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

export const shardOf = (topic, shards) => BigInt(murmur3(new TextEncoder().encode(topic))) % shards;
export const bucketOf = (key, buckets = KEY_BUCKETS) => ((murmur3(key) & 0xffff) * buckets) >>> 16;
