// Types of @headgate/client. Ids, offsets and segments are BigInt.
export interface BrokerOptions {
  host: string; port: number | string; cluster: string; clientId?: string;
  /** How long a call may wait for the broker, a daemon or a leader that has never answered, or does not say whether it has a topic; default 30 000. */
  connectTimeoutMs?: number;
  /** Further options of mqtt.js, such as `username`, `ca`, `cert`, `key` and `password`. These may be functions, which are called for each connection. */
  mqtt?: Record<string, unknown> & { password?: string | (() => string) };
}
export interface Header { name: string; value: Uint8Array }
/** A string is stored as UTF-8, and refused with half of a surrogate pair. Change no bytes before their batch has an outcome. */
export interface NewRecord {
  key: Uint8Array | string; value: Uint8Array | string; timestampMs?: number | bigint;
  headers?: { name: string; value: Uint8Array | string }[];
}
export interface Placement { segment: bigint; firstHash: bigint; lastHash: bigint; firstOffset: bigint; count: bigint }
/** `placements` are null if the batch is known to be durable only by a later one. */
export interface Stored { placements: Placement[] | null; topicId: bigint | null; duplicate: boolean }
export interface ConsumedRecord {
  topic: string; segment: bigint; offset: bigint; generation: bigint; deliveryCount: number;
  key: Uint8Array; value: Uint8Array; timestampMs: bigint; headers: Header[];
  /** STREAM: its number among the parked records of its key, which is being resumed; 0n: it was not parked. */
  parkedNumber: bigint;
}
/** The keys of one segment whose bucket, of 16, is `firstBucket` up to, not including, `endBucket`. As text such as "3[0-7]". */
export class BucketRange {
  private constructor();
  readonly segment: bigint; readonly firstBucket: number; readonly endBucket: number;
}
/** Reads objects of the ledger by their paths; an object that does not exist is null. */
export interface LedgerStore { read(path: string): Promise<Uint8Array | null>; list(folder: string): Promise<string[]> }
export interface ConsumerOptions extends BrokerOptions {
  topic: string; subscription: string; consumer?: string; ledger: string | LedgerStore;
  type?: "STREAM" | "QUEUE" | "CHECKPOINT";
  start?: "earliest" | "latest"; order?: "strict" | "none";
  positions?: string; behind?: "error" | "continue";
  /** Called for each segment before its first record is delivered, or for each part of it: consumers share it by key buckets. */
  onGranted?: (segment: bigint | BucketRange) => unknown;
  /** Called with what was granted when it goes, after the handlers of `run`. `msLeft` 0: another consumer may read it already. */
  onRevoked?: (segment: bigint | BucketRange, msLeft: number) => unknown;
}
export type LastAction = "stop" | "skip" | "redeliver" | "park";
export interface RetryPolicy { attempts?: number; firstPauseMs?: number; longestPauseMs?: number; then?: LastAction }
export interface RunOptions {
  concurrency?: number; retry?: RetryPolicy; stopMs?: number;
  /** End once everything is handled that was stored at the begin, and no other segment is left unread. */
  untilCaughtUp?: boolean;
  /** How far records are read beyond those that are not handled; default 10 000 records, 64 MiB. */
  lookAhead?: { maxRecords?: number; maxBytes?: number };
  /** Called after each call of the handler that failed, for each of its records. */
  onFailed?: (record: ConsumedRecord, error: unknown, next: "retry" | LastAction) => void;
}
/** How records are collected for one call; default 100 records, of which none waits longer than 1 000 ms for others. */
export interface BatchPolicy { maxRecords?: number; maxWaitMs?: number }
/** `rejectedAcknowledgements` came too late. `lagMs`: age of the newest record that was delivered, or how long ago all were; 0: all are, Infinity: none was. */
export interface ConsumerMetrics {
  deliveredRecords: number; redeliveredRecords: number; acknowledgedRecords: number; rejectedAcknowledgements: number; handlerCalls: number; handlerMs: number;
  heldSegments: number; queuedRecords: number; lagMs: number;
}
export interface RunReport { handled: number; retried: number; skipped: number; parked: number; redelivered: number; unhandled: number }

export interface ProducerOptions extends BrokerOptions {
  /** How long after `send` a batch has its outcome at the latest; default 120 000. */
  deliveryTimeoutMs?: number;
  /** A name has one program: the one with the highest `incarnation`, by default the time of its start. */
  name?: string; incarnation?: number | bigint;
  /** Called for each batch that is not stored, or of which that is unknown. Without it, `close` throws if nothing awaited `stored`. */
  onFailure?: (error: DeliveryFailedError | DeliveryUnknownError, topic: string) => void;
}
export class Producer {
  constructor(options: ProducerOptions);
  readonly resent: number;
  open(...topics: string[]): Promise<void>;
  sourcePosition(topic: string): Promise<Uint8Array | null>;
  send(topic: string, records: NewRecord[], options?: { sourcePosition?: Uint8Array | string | null }): Promise<{ stored: Promise<Stored> }>;
  close(options?: { timeoutMs?: number }): Promise<void>;
}
export class Consumer implements AsyncIterable<ConsumedRecord> {
  constructor(options: ConsumerOptions);
  readonly positions: string;
  /** Those that are held now, as a whole or in part. */
  readonly segments: bigint[];
  open(): Promise<void>;
  close(options?: { failed?: boolean }): Promise<void>;
  stop(): void;
  [Symbol.asyncIterator](): AsyncIterator<ConsumedRecord>;
  run(handler: (records: ConsumedRecord[]) => unknown, options: RunOptions & { batch: BatchPolicy }): Promise<RunReport>;
  run(handler: (record: ConsumedRecord) => unknown, options?: RunOptions): Promise<RunReport>;
  metrics(): ConsumerMetrics;
  acknowledge(record: ConsumedRecord): void;
  negativeAcknowledge(record: ConsumedRecord, options?: { delayMs?: number; reason?: string }): void;
  /** QUEUE: let the delivery time out `ms` from now. No effect without a time-out, or after its end. */
  extend(record: ConsumedRecord, ms: number): void;
  park(record: ConsumedRecord, options?: { reason?: string }): Promise<void>;
  flush(options?: { timeoutMs?: number }): Promise<void>;
}
export class HeadgateError extends Error { readonly verdict: string | null }
export class RequestRejectedError extends HeadgateError {}
export class FencedError extends RequestRejectedError {}
export class ForgottenError extends RequestRejectedError {}
export class OtherHistoryError extends RequestRejectedError {}
export class PositionOutOfRangeError extends RequestRejectedError {}
export class DeliveryFailedError extends HeadgateError {}
export class DeliveryUnknownError extends HeadgateError {}
export class StoreUnavailableError extends HeadgateError {}
export class HandlerFailedError extends HeadgateError {}
export class AcknowledgementsNotStoredError extends HeadgateError {}
