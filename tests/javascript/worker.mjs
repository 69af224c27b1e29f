// Handles records in parallel. In a QUEUE, a value that ends with 7 fails at its first delivery.
// Prints "segment<TAB>offset<TAB>key<TAB>value<TAB>delivery<TAB>handlers at work", and the number of handled records.
import { parseArgs } from "node:util";
import { Consumer } from "@headgate/client";

const names = ["cluster", "topic", "subscription", "consumer", "type", "ledger", "port"];
const { values } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: "string" }])) });
const consumer = new Consumer({ host: "127.0.0.1", start: "earliest", ...values });
const isQueue = values.type === "QUEUE";
let working = 0;
process.once("SIGTERM", () => consumer.stop());
const retry = { attempts: 1, then: isQueue ? "redeliver" : "stop" };
const handle = async ({ segment, offset, key, value, deliveryCount }) => {
  working++;
  await new Promise((resolve) => setTimeout(resolve, 5 * Math.random()));
  console.log([segment, offset, Buffer.from(key), Buffer.from(value), deliveryCount, working--].join("\t"));
  if (isQueue && deliveryCount === 1 && Buffer.from(value).toString().endsWith("7")) throw new Error("it ends with 7");
};
await consumer.run(handle, { concurrency: 8, retry });
