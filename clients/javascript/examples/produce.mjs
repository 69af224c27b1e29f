// Stores lines "key<TAB>value" of standard input. Prints "stored <first line> <lines>" once a batch is durable.
//
//   npm ci && printf 'a\t1\nb\t2\n' | node examples/produce.mjs --cluster local --topic orders --port 1883
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { Producer } from "@headgate/client";

const options = Object.fromEntries(["host", "port", "cluster", "topic", "batch"].map((name) => [name, { type: "string" }]));
const { topic, batch = "10", ...broker } = parseArgs({ options }).values;
const onFailure = (error) => (process.exitCode = 1) && console.error(error.message);
const producer = new Producer({ host: "127.0.0.1", port: 1883, cluster: "local", onFailure, ...broker });
await producer.open(topic);
let [lines, records] = [0, []];
async function flush() {
  const [first, count] = [lines - records.length, records.length];
  if (!count) return;
  const { stored } = await producer.send(topic, records.splice(0));
  stored.then(() => console.log(`stored ${first} ${count}`), () => {});
}
for await (const line of createInterface({ input: process.stdin })) {
  const [, key, value] = /^([^\t]+)\t(.*)$/.exec(line) ?? [];
  if (!key) throw new Error(`line ${lines} is not key<TAB>value: ${line.slice(0, 100)}`);
  records.push({ key: Buffer.from(key), value: Buffer.from(value) });
  lines++;
  if (records.length >= Number(batch)) await flush();
}
await flush();
await producer.close();
console.log(`done ${lines} resent ${producer.resent}`);
