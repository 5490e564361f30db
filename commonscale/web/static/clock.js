// Time as the coordinator has it, and the clocks on the page that run by it.

import { attr, el, say } from "./dom.js";
import { date, span, time } from "./units.js";

let ahead = 0;

/** Take over the coordinator's clock: a visitor's own may be wrong. */
export function setClock(nowMs) {
  ahead = nowMs - Date.now();
}

/** Now, in milliseconds. */
export const now = () => Date.now() + ahead;

const WORDS = {
  since: (at) => span(now() - at),
  ago: (at) => (now() - at < 2000 ? "just now" : `${span(now() - at)} ago`),
  left: (at) => (at > now() ? `${span(at - now())} left` : "passed"),
};

/** A running clock: "since" (14 s), "ago" (14 s ago), "left" (14 s left). Its title has the exact time. */
export function clock(words, atMs) {
  const node = el("time", { "data-clock": words });
  setStart(node, atMs);
  return node;
}

/** Let a clock run from another time. */
export function setStart(node, atMs) {
  attr(node, "data-at", atMs);
  attr(node, "datetime", new Date(atMs).toISOString());
  attr(node, "title", `${date(atMs)} ${time(atMs)}`);
  tick(node);
}

function tick(node) {
  say(node, WORDS[node.dataset.clock](Number(node.dataset.at)));
}

/** Once a second, all clocks; `also` is called with them. */
export function startClocks(also) {
  setInterval(() => {
    for (const node of document.querySelectorAll("[data-clock]")) tick(node);
    also();
  }, 1000);
}
