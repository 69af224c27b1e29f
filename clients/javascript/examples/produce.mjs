// Stores lines "key<TAB>value" of standard input. Prints "stored <first line> <lines>" once a batch is durable.
//
//   npm ci && printf 'a\t1\nb\t2\n' | node examples/produce.mjs --cluster local --topic orders --port 1883
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { Producer } from "@headgate/client";

const { values } = parseArgs({
  options: {
    host: { type: "string", default: "127.0.0.1" },
    port: { type: "string", default: "1883" },
    cluster: { type: "string", default: "local" },
    topic: { type: "string" },
    batch: { type: "string", default: "10" },
  },
});
const bytes = (text) => new TextEncoder().encode(text);
const producer = new Producer({ ...values, port: Number(values.port) });
await producer.open();

let lines = 0;
let pairs = [];
async function flush() {
  if (!pairs.length) return;
  const [first, count] = [lines - pairs.length, pairs.length];
  const { stored } = await producer.send(pairs);
  pairs = [];
  stored.then(() => console.log(`stored ${first} ${count}`), () => {});
}
for await (const line of createInterface({ input: process.stdin })) {
  const tab = line.indexOf("\t");
  pairs.push([bytes(line.slice(0, tab)), bytes(line.slice(tab + 1))]);
  lines++;
  if (pairs.length >= Number(values.batch)) await flush();
}
await flush();
await producer.close();
console.log(`done ${lines} resent ${producer.resent}`);
