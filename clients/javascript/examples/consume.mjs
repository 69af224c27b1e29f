// Prints each record as "segment<TAB>offset<TAB>key<TAB>value", and <TAB>name=value for each header, until SIGTERM. A printed record is acknowledged.
//
//   npm ci && node examples/consume.mjs --cluster local --topic orders --subscription billing --ledger headgate-data/ledger
import { parseArgs } from "node:util";
import { Consumer } from "@headgate/client";

const { values } = parseArgs({
  options: {
    host: { type: "string", default: "127.0.0.1" },
    port: { type: "string", default: "1883" },
    cluster: { type: "string", default: "local" },
    topic: { type: "string" },
    subscription: { type: "string" },
    consumer: { type: "string", default: "js" },
    ledger: { type: "string" },
  },
});
const text = (bytes) => new TextDecoder().decode(bytes);
const consumer = new Consumer({ ...values, port: Number(values.port) });
process.once("SIGTERM", () => consumer.stop());
const shown = (headers) => headers.map(({ name, value }) => `${name}=${text(value)}`);
await consumer.run(({ segment, offset, key, value, headers }) =>
  console.log([segment, offset, text(key), text(value), ...shown(headers)].join("\t")));
