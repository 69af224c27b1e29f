// What a consumer has read and no leader has confirmed: term id → its highest chunk (docs/protocol.md, "History").

export class History {
  #newest = new Map();
  constructor(points = []) {
    for (const [chunk, termId] of points) this.add(chunk, termId);
  }
  add(chunk, termId, previousTermId = termId) {
    if (chunk > (this.#newest.get(termId) ?? 0n)) this.#newest.set(termId, chunk);
    if (previousTermId !== termId && this.#newest.get(previousTermId) < chunk) this.#newest.delete(previousTermId);
  }
  get points() { return [...this.#newest].map(([termId, chunk]) => [chunk, termId]); }
  confirmed = (points) => points.forEach(([chunk, termId]) => this.#newest.get(termId) === chunk && this.#newest.delete(termId));
}
