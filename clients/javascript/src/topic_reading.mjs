// Reads the stored records of a whole topic once, oldest first, without a subscription: compacted objects, then chunks.
import { HeadgateError } from "./errors.mjs";

const READ_TOGETHER = 8; // chunks

export class TopicReading {
  #ledger; #topicId;
  #nextChunk = 1n;
  #nextOffsets = new Map(); // segment → offset after the last record that was read
  #last = null; // {number, term_id} of the last chunk that was read
  constructor(ledger, topicId) {
    this.#ledger = ledger;
    this.#topicId = topicId;
  }
  /** Whether what was read is of this topic, in the present history of the ledger. False also if that is not known. */
  async isOf(topicId) {
    if (topicId !== this.#topicId) return false;
    return !this.#last || (await this.#ledger.chunk(this.#last.number))?.term_id === this.#last.term_id;
  }
  /** Yield the rows that follow, at least up to what the leader counts in `segments`, as `describe_topic` lists them. */
  async *rows(segments) {
    const isBehind = ({ segment, next_offset }) => (this.#nextOffsets.get(segment) ?? 0n) < next_offset;
    while (segments.some(isBehind)) {
      for (const row of await this.#read()) {
        if (row.offset < (this.#nextOffsets.get(row.segment) ?? 0n)) continue; // of a range that begins earlier
        this.#nextOffsets.set(row.segment, row.offset + 1n);
        yield row;
      }
    }
  }
  /** Return the rows of the next chunks, or of the compacted range that has replaced them. */
  async #read() {
    const numbers = Array.from({ length: READ_TOGETHER }, (_, index) => this.#nextChunk + BigInt(index));
    const chunks = await Promise.all(numbers.map((number) => this.#ledger.chunk(number)));
    const found = chunks.slice(0, chunks.includes(null) ? chunks.indexOf(null) : chunks.length);
    const isOwn = ({ topic_id }) => topic_id === this.#topicId;
    if (found.length) {
      this.#nextChunk += BigInt(found.length);
      this.#last = found.at(-1);
      return found.flatMap(({ rows }) => rows).filter((row) => isOwn(row) && row.fact === "record");
    }
    const range = await this.#ledger.compacted(this.#nextChunk, isOwn);
    if (!range) throw new HeadgateError(`chunk ${this.#nextChunk} is missing, and no manifest includes it`);
    this.#nextChunk = range.last + 1n;
    return range.rows;
  }
}
