// The origin of a dead letter: headers that its sender adds, and by which its subscription knows it again.

const PREFIX = "headgate-source-";
const OWNER = ["ledger", "topic", "topic-id", "subscription-id"]; // ids: a topic may have been created again

/** Return what names the subscription of a consumer. */
export const ownerOf = ({ connection, membership, names: { topic, subscription } }) => ({
  ledger: connection.cluster.ledger_id, topic, "topic-id": membership.topicId,
  subscription, "subscription-id": membership.subscriptionId,
});

/** Return the headers of a record as a dead letter has them, in place of those of an earlier death. */
export function withOrigin(headers, origin) {
  const added = Object.entries(origin).map(([name, value]) => ({ name: PREFIX + name, value: Buffer.from(String(value)) }));
  return [...(headers ?? []).filter(({ name }) => !name.startsWith(PREFIX)), ...added];
}

/** Return the number of a dead letter among the parked records of its key; 0: it is none of a parked key of `owner`. */
export function parkedNumberOf(headers, owner) {
  const own = (headers ?? []).filter(({ name }) => name.startsWith(PREFIX));
  const origin = Object.fromEntries(own.map(({ name, value }) => [name.slice(PREFIX.length), Buffer.from(value).toString()]));
  const isOwn = OWNER.every((name) => origin[name] === String(owner[name]));
  return isOwn && /^\d{1,19}$/.test(origin["parked-number"]) ? BigInt(origin["parked-number"]) : 0n;
}
