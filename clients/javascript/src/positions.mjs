// The positions of a CHECKPOINT consumer as text, with what they belong to. The Python client writes the same.
import { crc32 } from "node:zlib";
import { decode, encode } from "./encoding.mjs";
import { HeadgateError } from "./errors.mjs";

const PREFIX = "positions-1.";

/** `positions` and `held` are a Map and an iterable of segments, `history` points. */
export function encodePositions({ topic, topicId, ledgerId, positions, held, history }) {
  const sorted = [...held].sort((a, b) => Number(a - b));
  const header = Buffer.from([0x96]); // an array of six
  const data = Buffer.concat([header, ...[topic, topicId, ledgerId].map(encode), encodeMap(positions), encode(sorted), encode(history)]);
  const checksum = Buffer.alloc(4);
  checksum.writeUInt32BE(crc32(data));
  return PREFIX + Buffer.concat([checksum, data]).toString("base64url");
}

/** Keys of an object would become strings. */
function encodeMap(map) {
  const header = Buffer.from([0xdf, 0, 0, 0, 0]);
  header.writeUInt32BE(map.size, 1);
  return Buffer.concat([header, ...[...map].flat().map(encode)]);
}

export function decodePositions(text) {
  const sealed = Buffer.from(String(text).slice(PREFIX.length), "base64url");
  const data = sealed.subarray(4);
  if (!String(text).startsWith(PREFIX) || sealed.length < 5 || crc32(data) !== sealed.readUInt32BE(0))
    throw new HeadgateError("positions: not a text that Consumer.positions returned, or not all of it");
  const [topic, topicId, ledgerId, positions, held, history] = decode(data);
  const segments = Object.entries(positions).map(([segment, offset]) => [BigInt(segment), offset]);
  return { topic, topicId, ledgerId, positions: new Map(segments), held, history };
}
