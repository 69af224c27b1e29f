// Messages as msgpack. Every integer is a BigInt, because ids have 63 bits and numbers of JavaScript have 53.
import { decode as unpack, encode as pack } from "@msgpack/msgpack";

export const encode = (value) => Buffer.from(pack(value, { useBigInt64: true, ignoreUndefined: true }));
/** Return a key or a value as bytes: a string as UTF-8. */
export function bytesOf(content, what) {
  if (typeof content === "string" && content.isWellFormed()) return Buffer.from(content);
  if (content instanceof Uint8Array) return content;
  throw new TypeError(`${what}: give a Uint8Array or a string, not ${content === null ? "null" : typeof content === "string" ? "one with half of a character" : typeof content}`);
}
export const decode = (bytes) => widened(unpack(bytes, { useBigInt64: true, mapKeyConverter: String }));

function widened(value) {
  if (Number.isInteger(value)) return BigInt(value);
  if (Array.isArray(value)) return value.map(widened);
  if (value === null || typeof value !== "object" || value instanceof Uint8Array) return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, widened(item)]));
}
