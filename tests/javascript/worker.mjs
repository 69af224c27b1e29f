// Handles records in parallel. Prints "segment<TAB>offset<TAB>key<TAB>value<TAB>handlers at work".
import { parseArgs } from "node:util";
import { Consumer } from "@headgate/client";

const names = ["cluster", "topic", "subscription", "consumer", "ledger", "port"];
const { values } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: "string" }])) });
const consumer = new Consumer({ host: "127.0.0.1", start: "earliest", ...values });
let working = 0;
process.once("SIGTERM", () => consumer.stop());
const handle = async ({ segment, offset, key, value }) => {
  working++;
  await new Promise((resolve) => setTimeout(resolve, 5 * Math.random()));
  console.log([segment, offset, Buffer.from(key), Buffer.from(value), working--].join("\t"));
};
await consumer.run(handle, { concurrency: 8, retry: { attempts: 1, then: "stop" } });
