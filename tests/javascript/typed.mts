import { BucketRange, Consumer, DeliveryFailedError, Producer } from "@headgate/client";

const broker = { host: "127.0.0.1", port: 1883, cluster: "local" };
const { stored } = await new Producer({ ...broker, mqtt: { password: () => "token" }, onFailure: ({ verdict }, topic) => [verdict, topic] }).send("orders", [{ key: new Uint8Array([1]), value: new Uint8Array() }]);
const segments: bigint[] | undefined = (await stored).placements?.map(({ segment }) => segment);
const consumer = new Consumer({ ...broker, topic: "orders", subscription: "jobs", type: "QUEUE", ledger: "ledger" });
for await (const record of consumer) consumer.negativeAcknowledge(record, { delayMs: record.deliveryCount });
const options = { concurrency: 4, retry: { then: "redeliver" as const }, onFailed: (_: unknown, error: unknown) => console.log(error) };
const { handled } = await consumer.run(async (record) => consumer.extend(record, 60_000), options);
const segmentOf = (held: bigint | BucketRange): bigint => (held instanceof BucketRange ? held.segment : held);
const callbacks = { onGranted: segmentOf, onRevoked: (_: bigint | BucketRange, msLeft: number) => msLeft };
const drainer = new Consumer({ ...broker, topic: "orders", subscription: "jobs", ledger: "ledger", ...callbacks });
await drainer.run((records) => records.length, { batch: { maxRecords: 9 }, lookAhead: { maxRecords: 99 }, untilCaughtUp: true });
for await (const { parkedNumber } of drainer) console.log(parkedNumber + 1n);
const lag: number = drainer.metrics().lagMs;
const verdict: string | null = new DeliveryFailedError("refused").verdict;
// @ts-expect-error: an id is a BigInt
const rounded: number[] | undefined = segments;
// @ts-expect-error: there is no such type
new Consumer({ ...broker, topic: "orders", subscription: "jobs", type: "QUEUES", ledger: "ledger" });
export { handled, lag, rounded, verdict };
