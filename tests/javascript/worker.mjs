// Handles records in parallel. Prints "segment<TAB>offset<TAB>key<TAB>value<TAB>handlers at work<TAB>ms since 1970", and the callbacks
// for its segments. With --batch, it handles batches until it has caught up, and prints what it has counted. In a QUEUE 13 fails.
// With --poison, each record of these keys fails until SIGUSR2, and its key is parked.
import assert from "node:assert";
import { parseArgs } from "node:util";
import { Consumer } from "@headgate/client";

const names = ["cluster", "topic", "subscription", "consumer", "ledger", "port", "type", "batch", "poison"];
const { batch, poison, ...values } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: "string" }])) }).values;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const onGranted = (segment) => pause(100).then(() => console.log(`granted ${segment}`));
const onRevoked = (segment, msLeft) => console.log(`revoked ${segment} ${msLeft > 0}`);
const consumer = new Consumer({ host: "127.0.0.1", start: "earliest", ...(batch && { onGranted, onRevoked }), ...values });
let [working, isSpared] = [0, false];
process.on("SIGUSR2", () => (isSpared = true));
process.once("SIGTERM", () => consumer.stop());
const handle = async (records) => {
  working++;
  await assert.rejects(() => consumer.close(), /^HeadgateError: close: run is at work/);
  await pause(5 * Math.random());
  const failing = (poison ?? "13").split(",");
  const fails = ({ key, value }) => failing.includes(String(Buffer.from(poison ? key : value)));
  const unlucky = !isSpared && (poison || values.type === "QUEUE") && records.some(fails);
  if (!unlucky) for (const { segment, offset, key, value } of records) console.log([segment, offset, Buffer.from(key), Buffer.from(value), working, Date.now()].join("\t"));
  working--;
  if (unlucky) throw new Error("unlucky");
};
const then = values.type === "QUEUE" ? "redeliver" : poison ? "park" : "stop";
const options = { concurrency: 8, retry: { attempts: 1, then }, untilCaughtUp: !!batch };
const report = batch ? await consumer.run(handle, { ...options, batch: { maxRecords: Number(batch), maxWaitMs: 50 } }) : await consumer.run((record) => handle([record]), options);
if (batch) console.log(JSON.stringify({ ...report, ...consumer.metrics() }));
