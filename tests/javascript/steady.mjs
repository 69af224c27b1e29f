// Stores a number every 10 ms and handles each, until SIGTERM. Prints "handled <number>" and "warning <text>". The passwords of
// its users shop and billing are in the files of this name in the folder of --tokens, and are read at each connection.
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { Consumer, Producer } from "@headgate/client";

const names = ["cluster", "topic", "port", "ledger", "tokens"];
const { topic, ledger, tokens, ...others } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: "string" }])) }).values;
const broker = (username) => ({ host: "127.0.0.1", ...others, mqtt: { username, password: () => readFileSync(`${tokens}/${username}`, "utf8") } });
process.on("warning", ({ message }) => console.log(`warning ${message}`));
const producer = new Producer(broker("shop"));
const consumer = new Consumer({ ...broker("billing"), topic, subscription: "billing", start: "earliest", ledger });
const running = consumer.run(({ value }) => console.log(`handled ${Buffer.from(value)}`));
let isEnding = false;
process.once("SIGTERM", () => (isEnding = true));
let sent = 0;
for (; !isEnding; sent++) {
  await producer.send(topic, [{ key: `key-${sent % 7}`, value: String(sent) }]);
  await new Promise((resolve) => setTimeout(resolve, 10));
}
await producer.close();
console.log(`stored ${sent}`);
process.once("SIGTERM", () => consumer.stop());
await running;
