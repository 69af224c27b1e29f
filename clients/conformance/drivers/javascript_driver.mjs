// The driver of @headgate/client. Commands and answers: docs/write-a-client.md.
import { createInterface } from "node:readline";
import { Consumer, DeliveryFailedError, DeliveryUnknownError, Producer } from "@headgate/client";

const { bucketOf, murmur3, shardOf } = await import(new URL("hashing.mjs", import.meta.resolve("@headgate/client")));
const bytes = (hex) => Buffer.from(hex, "hex");
const hex = (data) => Buffer.from(data).toString("hex");
const records = new Map(); // "segment/offset" → the record that was received last
let broker, ledger, producer, consumer, iterator, pending;

const shown = ({ segment, offset, key, value, headers, deliveryCount, parkedNumber }) => ({
  segment: String(segment), offset: String(offset), key: hex(key), value: hex(value),
  headers: headers.map(({ name, value: content }) => [name, hex(content)]), delivery: String(deliveryCount), parked: String(parkedNumber),
});
const word = (error) => {
  if (error instanceof DeliveryUnknownError) return "unknown";
  return error instanceof DeliveryFailedError ? "not_stored" : (error.verdict ?? "other");
};

// A command that returns a function has begun, and the function waits for the rest.
const commands = {
  async start({ host, port, cluster, ledger: folder }) {
    broker = { host, port, cluster };
    ledger = folder;
  },
  async hash({ key, shards, buckets }) {
    const [raw, shard] = [bytes(key), shardOf(bytes(key).toString(), BigInt(shards))];
    const isText = hex(Buffer.from(raw.toString())) === key;
    return { hash: String(murmur3(raw)), bucket: String(bucketOf(raw, Number(buckets))), shard: isText ? String(shard) : "" };
  },
  async send({ topic, key, value, headers = [] }) {
    producer ??= new Producer(broker);
    const record = { key: bytes(key), value: bytes(value), headers: headers.map(([name, content]) => ({ name, value: bytes(content) })) };
    const { stored } = await producer.send(topic, [record]);
    return async () => {
      const { placements } = await stored;
      const [{ segment, firstOffset }] = placements ?? [{ segment: null, firstOffset: null }];
      return { segment: segment === null ? null : String(segment), offset: firstOffset === null ? null : String(firstOffset) };
    };
  },
  async open(options) {
    consumer = new Consumer({ ...broker, ledger, ...options });
    await consumer.open();
    iterator = consumer[Symbol.asyncIterator]();
  },
  async receive({ count, seconds, acknowledging }) {
    return async () => {
      const found = [];
      const until = seconds ? new Promise((resolve) => setTimeout(resolve, seconds * 1000, null)) : new Promise(() => {});
      while (found.length < count) {
        pending ??= iterator.next();
        const next = await Promise.race([pending, until]);
        if (!next || next.done) break;
        pending = undefined;
        records.set(`${next.value.segment}/${next.value.offset}`, next.value);
        found.push(next.value);
        if (acknowledging) consumer.acknowledge(next.value);
      }
      return { records: found.map(shown) };
    };
  },
  acknowledge: async ({ segment, offset }) => consumer.acknowledge(records.get(`${segment}/${offset}`)),
  reject: async ({ segment, offset }) => consumer.negativeAcknowledge(records.get(`${segment}/${offset}`), { reason: "a case says so" }),
  extend: async ({ segment, offset, seconds }) => consumer.extend(records.get(`${segment}/${offset}`), seconds * 1000),
  park: async ({ segment, offset }) => consumer.park(records.get(`${segment}/${offset}`), { reason: "a case says so" }),
  flush: () => consumer.flush(),
  late: async () => ({ count: String(consumer.metrics().rejectedAcknowledgements) }),
  positions: async () => ({ positions: consumer.positions }),
  close: () => consumer.close(),
};

const print = (id, answer) => console.log(JSON.stringify({ id, ...answer }));
const failed = (id, error) => print(id, { error: word(error), text: String(error) });
process.on("unhandledRejection", () => {}); // of an iteration that no command waits for
for await (const line of createInterface({ input: process.stdin })) {
  const { id, do: name, ...options } = JSON.parse(line);
  if (!commands[name]) print(id, { unsupported: true });
  else
    try {
      const result = await commands[name](options);
      if (typeof result === "function") result().then((answer) => print(id, answer), (error) => failed(id, error));
      else print(id, result);
    } catch (error) {
      failed(id, error);
    }
}
process.exit(0);
