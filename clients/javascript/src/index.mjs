// The public names of @headgate/client.
export { BucketRange } from "./bucket_range.mjs";
export { Consumer } from "./consumer.mjs";
export { AcknowledgementsNotStoredError, DeliveryFailedError, DeliveryUnknownError, FencedError, ForgottenError } from "./errors.mjs";
export { HandlerFailedError, HeadgateError, OtherHistoryError, PositionOutOfRangeError, RequestRejectedError, StoreUnavailableError } from "./errors.mjs";
export { Producer } from "./producer.mjs";
