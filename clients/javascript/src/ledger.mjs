// Reads the chunks and compacted objects of one shard from a folder or a store, written from docs/ledger.md alone.
//
// Every integer is a BigInt, because ids have 63 bits and numbers of JavaScript have 53. Objects are read as a whole.
import { readFile, readdir } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { decompress } from "fzstd";
import { parquetMetadata, parquetReadObjects } from "hyparquet";
import { HeadgateError, StoreUnavailableError } from "./errors.mjs";

const FORMAT = 5n;
const ROW_COLUMNS = ["fact", "topic_id", "segment", "offset", "end_offset", "timestamp_ms", "key", "value", "headers"];

const parseJson = (text) => // JSON.parse alone would round 63-bit ids
  JSON.parse(text.replace(/([:[,]\s*)(\d+)(?=\s*[,\]}])/g, '$1"$2n"'), (_, value) =>
    typeof value === "string" && /^\d+n$/.test(value) ? BigInt(value.slice(0, -1)) : value);

export class Ledger {
  #source; #store; #name; #shard; #ledgerId;
  /** `source`: its folder, or a store: {read(path), list(folder)}, which return bytes or null, and the names in a folder. */
  constructor(source, shard, ledgerId) {
    this.#source = source;
    this.#name = typeof source === "string" ? source : "the store";
    this.#store = typeof source === "string" ? folder(source) : source;
    this.#shard = shard;
    this.#ledgerId = ledgerId;
  }
  ofShard = (shard) => new Ledger(this.#source, shard, this.#ledgerId);
  /** Fail unless this is the ledger that the cluster describes. */
  async check() {
    const data = await this.#read("ledger.json");
    if (!data) throw new HeadgateError(`${this.#name} has no ledger.json: the option ledger is the folder, or the store, of the cluster's ledger`);
    const found = this.#json(data, "ledger.json").ledger_id;
    if (found !== this.#ledgerId) throw new HeadgateError(`${this.#name} has the ledger id ${found}, the cluster ${this.#ledgerId}`);
  }
  /** Return {rows, term_id, previous_term_id} of a chunk; null if it does not exist. */
  async chunk(number) {
    const path = `chunks/${this.#shardFolder}/${digits(number, 12)}.parquet`;
    const data = await this.#read(path);
    if (data === null) return null;
    const at = data.length < 24 ? -1 : data.length - 16 - data.readUInt32LE(data.length - 8);
    const expected = at < 0 ? 0 : crc32(data.subarray(at + 8), crc32(data.subarray(0, at + 4)));
    if (at < 0 || data.toString("latin1", at, at + 4) !== "HGck" || data.readUInt32LE(at + 4) !== expected)
      throw new HeadgateError(`${path} is damaged`);
    const header = parseJson(parquetMetadata(bufferOf(data)).key_value_metadata.find(({ key }) => key === "headgate").value);
    if (header.format !== FORMAT || header.shard !== this.#shard || header.number !== number)
      throw new HeadgateError(`${path} is chunk ${header.number} of shard ${header.shard} in format ${header.format}`);
    return { ...header, rows: await parquetRows(data, ROW_COLUMNS) };
  }
  /** Return {rows, last} of the compacted range that includes a trimmed chunk, of objects for which `isWanted`; null if there is none (any more). */
  async compacted(number, isWanted) {
    const folder = `manifests/${this.#shardFolder}`;
    const names = await attempt(() => this.#store.list(folder));
    const range = chainOf([...names]).find(({ first, last }) => first <= number && number <= last);
    const data = range && (await this.#read(`${folder}/${range.name}`));
    if (!data) return null;
    const manifest = this.#json(data, range.name);
    if (manifest.format !== FORMAT || manifest.ledger_id !== this.#ledgerId) throw new HeadgateError(`${range.name} is of another ledger or format`);
    const rows = [];
    for (const item of manifest.objects.filter(isWanted)) {
      const { topic_id, segment } = item;
      const object = await this.#read(item.path);
      if (object === null) return null; // a wider range has replaced it
      if (BigInt(crc32(object)) !== item.checksum) throw new HeadgateError(`${item.path} is damaged`);
      for (const row of await parquetRows(object, ["offset", "timestamp_ms", "key", "value", "headers"]))
        rows.push({ fact: "record", topic_id, segment, ...row });
    }
    return { rows, last: range.last };
  }
  get #shardFolder() { return `shard=${digits(this.#shard, 4)}`; }
  async #read(path) {
    const data = await attempt(() => this.#store.read(path));
    return data && Buffer.from(data.buffer, data.byteOffset, data.length);
  }
  #json(data, path) {
    const [, checksum, content] = /^\{"checksum":"([0-9a-f]{8})",(.*)$/s.exec(data.toString()) ?? [];
    if (checksum === undefined || crc32(content) !== parseInt(checksum, 16)) throw new HeadgateError(`${path} is damaged`);
    return parseJson(`{${content}`);
  }
}

const digits = (number, count) => String(number).padStart(count, "0");
const bufferOf = (data) => data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
/** Return the rows; a chunk without headers has no such column. */
const parquetRows = (data, columns) => {
  const [file, metadata] = [bufferOf(data), parquetMetadata(bufferOf(data))];
  const present = columns.filter((name) => name !== "headers" || metadata.schema.some((column) => column.name === name));
  return parquetReadObjects({ file, metadata, columns: present, utf8: false, compressors: { ZSTD: (input) => decompress(input) } });
};

const folder = (root) => ({
  read: (path) => readFile(join(root, path)).catch(absent),
  list: async (path) => (await readdir(join(root, path)).catch(absent)) ?? [],
});
const absent = (error) => (error.code === "ENOENT" ? null : Promise.reject(error));
const unavailable = (cause) => Promise.reject(Object.assign(new StoreUnavailableError(`the ledger cannot be read: ${cause.message}`), { cause }));
const attempt = (read) => (async () => read())().catch(unavailable);

/** Return the adjacent ranges from chunk 1 on that reach furthest, and of those chains one of the fewest ranges. */
function chainOf(names) {
  const chains = new Map([[0n, []]]); // last chunk → the shortest chain that ends there
  for (const name of names.sort()) {
    const [, first, last] = (/^(\d{12})-(\d{12})\.json$/.exec(name) ?? []).map((part, at) => (at ? BigInt(part) : part));
    const before = last >= first && chains.get(first - 1n);
    if (before && !(chains.get(last)?.length <= before.length + 1)) chains.set(last, [...before, { name, first, last }]);
  }
  return chains.get([...chains.keys()].reduce((a, b) => (a > b ? a : b)));
}
