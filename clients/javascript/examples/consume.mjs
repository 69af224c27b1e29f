// Prints each record as "segment<TAB>offset<TAB>key<TAB>value", and <TAB>name=value for each header, until SIGTERM.
// A printed record is acknowledged; `--type CHECKPOINT` keeps its positions in the file of `--positions` instead.
//
//   npm ci && node examples/consume.mjs --cluster local --topic orders --subscription billing --ledger headgate-data/ledger
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { Consumer } from "@headgate/client";

const names = ["host", "port", "cluster", "topic", "subscription", "consumer", "type", "start", "positions", "ledger"];
const { values } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: "string" }])) });
const { positions: file, ...options } = values;
const positions = file && existsSync(file) ? readFileSync(file, "utf8") : undefined;
const consumer = new Consumer({ host: "127.0.0.1", port: 1883, cluster: "local", start: "earliest", consumer: "js", ...options, positions });
process.once("SIGTERM", () => consumer.stop());
const text = (bytes) => new TextDecoder().decode(bytes);
await consumer.run(({ segment, offset, key, value, headers }) =>
  console.log([segment, offset, text(key), text(value), ...headers.map(({ name, value: its }) => `${name}=${text(its)}`)].join("\t")));
if (file) writeFileSync(file, consumer.positions);
