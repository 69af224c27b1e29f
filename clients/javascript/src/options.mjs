// Checks what a program gives. An error names the option, what it is, and what to use instead.
import { fileURLToPath } from "node:url";
import { HeadgateError } from "./errors.mjs";

/** Return a value as people read it, on one line. */
function shown(value) {
  if (typeof value === "function") return "a function";
  const text = value !== null && typeof value === "object" ? (value.constructor?.name ?? "an object") : String(value);
  return text.slice(0, 100);
}
const requireThat = (isRight, name, value, use) => { if (!isRight) throw new HeadgateError(`${name}=${shown(value)}: use ${use}`); };
export const requireText = (name, value) => requireThat(typeof value === "string" && value !== "", name, value, "a text");
export const requireOptions = (name, value) => requireThat(value !== null && typeof value === "object", name, value, "an object with options");
export const requireArray = (name, value) => requireThat(Array.isArray(value), name, value, "an array");
export const requireFunction = (name, value) => requireThat(typeof value === "function", name, value, "a function");
export const requireRecord = (name, value, topic) =>
  requireThat(typeof value?.offset === "bigint" && value.topic === topic, name, value, "a record that this consumer has delivered");
/** An option that is absent has its default. */
export const requireOneOf = (name, value, ...texts) => requireThat(value === undefined || texts.includes(value), name, value, texts.join(" or "));
/** Return a time in ms: a text, such as one of the environment, would be joined to a time, and never be reached. */
export const requireMs = (name, value) => requireThat(typeof value === "number" && value >= 0, name, value, "a number of ms, 0 or more") ?? value;
/** Return `given` options of `run` with the `defaults` of others. A wrong name would have no effect, silently. */
export function withDefaults(where, given, defaults) {
  requireOptions(where, given);
  for (const name of Object.keys(given)) requireOneOf(where, name, ...Object.keys(defaults));
  return { ...defaults, ...given };
}
export const requireCounts = (counts) => Object.entries(counts).forEach(([name, count]) => requireThat(count >= 1, `run: ${name}`, count, "1 or more"));
/** `others`: the options that are left. */
export function requireNoOther(where, others) {
  const [name] = Object.keys(others);
  if (name !== undefined) throw new HeadgateError(`${where}: there is no option ${name}`);
}
export function requireBroker(where, { host, port, cluster, clientId, connectTimeoutMs, mqtt, ...others }) {
  requireNoOther(where, others);
  requireThat(typeof host === "string" && /^[^/\s]+$/.test(host), "host", host, "a name or an address without a scheme, such as 127.0.0.1");
  requireThat(/^\d{1,5}$/.test(port) && port > 0 && port < 65_536, "port", port, "the broker's port, such as 1883");
  requireMs("connectTimeoutMs", connectTimeoutMs ?? 0);
  for (const [name, text] of Object.entries({ cluster, clientId: clientId ?? "generated" }))
    requireThat(typeof text === "string" && /^[^/+#]+$/.test(text), name, text, "a text without /, + and #");
}
/** Return the options of mqtt.js with their protocol: without TLS it would leave out certificates silently. */
export function withProtocol(options) {
  const needsTls = ["ca", "cert", "key", "pfx"].some((name) => options[name] !== undefined);
  const { protocol = needsTls ? "mqtts" : "mqtt" } = options;
  requireThat(!needsTls || /^(mqtts|tls|ssl|wss)$/.test(protocol), "mqtt.protocol", protocol, "mqtts, because ca, cert, key and pfx are for TLS");
  return { ...options, protocol };
}
/** Return what those of these options return that are functions. */
export function renewed(options) {
  const functions = ["password", "ca", "cert", "key", "pfx", "passphrase"].filter((name) => typeof options[name] === "function");
  return Object.fromEntries(functions.map((name) => [name, options[name]()]));
}
/** Return a time in ms since 1970 as a bigint. */
export function timeOf(name, value) {
  const isWhole = typeof value === "bigint" || Number.isSafeInteger(value);
  requireThat(isWhole && value >= 0, name, value, "whole ms since 1970, such as Date.now()");
  return BigInt(value);
}
/** Return the source of a ledger: a store, or the path of a folder. */
export function ledgerSource(ledger) {
  const isFolder = typeof ledger === "string" && ledger !== "" && !/^(?!file:)[a-z0-9+]{2,}:\/\//i.test(ledger);
  const isStore = typeof ledger?.read === "function" && typeof ledger?.list === "function";
  requireThat(isFolder || isStore, "ledger", ledger, "the folder of the cluster's ledger, or a store with read and list for one in a bucket: README.md has one");
  return isFolder && ledger.startsWith("file://") ? fileURLToPath(ledger) : ledger;
}
