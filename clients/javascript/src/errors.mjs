// What the client throws. `verdict` is that of the leader (docs/protocol.md, "Verdicts"), or null.

export class HeadgateError extends Error {
  constructor(message, verdict = null) {
    super(message);
    this.name = this.constructor.name;
    this.verdict = verdict;
  }
}

export class RequestRejectedError extends HeadgateError {} // the leader refuses a request for good
export class FencedError extends RequestRejectedError {} // a newer program of this name runs, or a command removed this one
export class ForgottenError extends RequestRejectedError {} // the leader no longer knows this producer
export class OtherHistoryError extends RequestRejectedError {} // an older ledger was put back while this consumer ran
export class PositionOutOfRangeError extends RequestRejectedError {} // a position of a CHECKPOINT consumer is not in the topic
export class DeliveryFailedError extends HeadgateError {} // the batch is not stored, and never will be
export class DeliveryUnknownError extends HeadgateError {} // the batch was sent, and whether it is stored is unknown
export class HandlerFailedError extends HeadgateError {} // a handler of `run` failed for the last time; `cause` is its error
export class StoreUnavailableError extends HeadgateError {} // the ledger cannot be read at present
export class AcknowledgementsNotStoredError extends HeadgateError {} // something that was acknowledged is not stored

const BY_VERDICT = { fenced: FencedError, forgotten: ForgottenError, other_history: OtherHistoryError, out_of_range: PositionOutOfRangeError };

/** Return the error of a `rejected` reply. */
export const rejection = ({ verdict, reason }) => new (BY_VERDICT[verdict] ?? RequestRejectedError)(`${verdict}: ${reason}`, verdict);

const warnedAt = new Map(); // kind of a warning → when it was given last
/** Warn of what a client lives with, once a minute at most for each `kind`. */
export function warn(kind, text) {
  if (performance.now() < (warnedAt.get(kind) ?? -Infinity) + 60_000) return;
  process.emitWarning(text, "HeadgateWarning");
  warnedAt.set(kind, performance.now());
}
/** Return why something failed as the leader takes it: 200 characters that have an encoding. */
export const reasonText = (reason) => String(reason?.message ?? reason).slice(0, 200).toWellFormed();
