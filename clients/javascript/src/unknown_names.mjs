// Says which topic was probably meant by a name that does not exist.
//
// A topic's name selects its shard, so only the lists of all shards have the near names: the leader that refuses a request
// names none. A program that may not list topics, or a list that takes too long, leaves the leader's words.
const LIST_MS = 5000;
const MOST_COMPARED = 2000; // topics
const SHOWN = 3;

/** Return a better error than `error` if it was caused by the name of a topic, otherwise `error`, by `deadline` at the latest. */
export async function explained(connection, topic, error, deadline = Infinity) {
  if (error.verdict !== "invalid") return error;
  const listed = connection.topics().catch(() => null); // not permitted, or a shard has no leader
  let timer;
  const late = new Promise((resolve) => (timer = setTimeout(() => resolve(null), Math.min(LIST_MS, deadline - performance.now()))));
  const topics = await Promise.race([listed, late]).finally(() => clearTimeout(timer));
  if (!topics || topics.includes(topic)) return error;
  const near = nearNames(topic, topics).map((name) => `'${name}'`);
  const existing = topics.slice(0, SHOWN).join(", ") + (topics.length > SHOWN ? ", …" : "");
  const others = topics.length ? `there are: ${existing}` : `create it first: headgate topic create ${topic}`;
  const text = `topic '${topic}' does not exist; ${near.length ? `did you mean ${near.join(" or ")}?` : others}`;
  return Object.assign(new error.constructor(text, error.verdict), { cause: error });
}
function nearNames(name, names) {
  const found = names.slice(0, MOST_COMPARED).map((each) => ({ each, changes: changesBetween(name, each) }));
  const isNear = ({ each, changes }) => changes <= 0.4 * Math.max(name.length, each.length);
  return found.filter(isNear).sort((a, b) => a.changes - b.changes).slice(0, SHOWN).map(({ each }) => each);
}
/** Return how many characters are to be added, removed or replaced. */
function changesBetween(one, other) {
  let row = Array.from({ length: other.length + 1 }, (_, at) => at);
  for (let line = 1; line <= one.length; line++) {
    const next = [line];
    for (let at = 1; at <= other.length; at++)
      next.push(Math.min(row[at] + 1, next[at - 1] + 1, row[at - 1] + (one[line - 1] === other[at - 1] ? 0 : 1)));
    row = next;
  }
  return row[other.length];
}
