// The public names of @headgate/client.
export { Consumer } from "./consumer.mjs";
export { Producer } from "./producer.mjs";
