// Keeps the page current: replaces the parts that the daemon's stream of events sends, and says when they are stale.
// It decides nothing about the content; the daemon renders it.
"use strict";

const RECONNECT_MS = 3000;
const body = document.body;
const live = document.getElementById("live");
const stale = document.getElementById("stale");
let source = null;
let heardAt = performance.now();
let intervalMs = 5000;
let reason = "";

function show(state) {
  if (live.textContent === state) return;
  live.textContent = state;
  live.className = "badge " + state;
}

function replace(id, html) {
  const part = document.getElementById(id);
  if (!part) {
    location.reload();
    return;
  }
  Idiomorph.morph(part, html, {
    // What the reader has unfolded stays so.
    callbacks: { beforeAttributeUpdated: (name) => name !== "open" },
  });
}

function receive(event) {
  const update = JSON.parse(event.data);
  if (update.version !== body.dataset.version) {
    location.reload();
    return;
  }
  heardAt = performance.now();
  intervalMs = update.interval_ms;
  reason = update.problem;
  for (const [id, html] of Object.entries(update.parts)) replace(id, html);
  check();
}

function connect() {
  source = new EventSource(body.dataset.events);
  source.addEventListener("update", receive);
  source.addEventListener("error", () => {
    // The browser reconnects by itself, except after an answer other than 200.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RECONNECT_MS);
  });
}

function check() {
  const silentMs = performance.now() - heardAt;
  const silent = silentMs > 2 * intervalMs + 3000;
  const isStale = silent || reason !== "";
  show(isStale ? "stale" : "live");
  body.classList.toggle("stale", isStale);
  const text = silent
    ? "Stale: the daemon has sent nothing for " + Math.round(silentMs / 5000) * 5 + " s. Reconnecting."
    : reason && "Stale: " + reason;
  if (stale.textContent !== text) stale.textContent = text;
  stale.hidden = !isStale;
}

if (body.dataset.events) {
  connect();
  setInterval(check, 1000);
}
