// How states and faults look and what they are called: a word, a shape and a tone (see base.css).

import { attr, el, say } from "./dom.js";

const JOBS = {
  inviting: ["info", "ring", "Inviting"],
  running: ["info", "disc", "Running"],
  done: ["ok", "check", "Done"],
  failed: ["bad", "cross", "Failed"],
  refused: ["warn", "diamond", "Refused"],
  cancelled: ["quiet", "bar", "Cancelled"],
};

export const OPEN = ["inviting", "running"];

export const jobLook = (state) => JOBS[state] ?? ["quiet", "bar", state];
export const siteLook = (online) => (online ? ["ok", "disc", "Online"] : ["bad", "ring", "Offline"]);

/** What a visitor should know about a certificate: nothing, soon, now, too late. */
export function certificateLook(days) {
  if (days < 0) return ["bad", "cross", "Expired"];
  if (days < 7) return ["bad", "triangle", "Renew now"];
  return days < 30 ? ["warn", "triangle", "Renew soon"] : null;
}

const REFUSALS = ["Refused", "NotAllowed", "IncompatiblePeer", "TooFewSites"];
const QUIET = ["JobCancelled", "Cancelled"];

/** Refusals are decisions, the rest are faults. */
export function incidentLook(what) {
  if (REFUSALS.includes(what)) return ["warn", "diamond", what];
  return QUIET.includes(what) ? ["quiet", "bar", what] : ["bad", "cross", what];
}

/** A new badge. */
export function badge(look) {
  const node = el("span", { class: "badge" });
  setBadge(node, look);
  return node;
}

/** Give a badge another look; without one it is hidden. */
export function setBadge(node, look) {
  attr(node, "hidden", !look);
  if (!look) return;
  attr(node, "data-tone", look[0]);
  attr(node, "data-shape", look[1]);
  say(node, look[2]);
}

/** The coordinator's name on the wire is @coordinator. */
export const party = (name) => (name === "@coordinator" ? "coordinator" : name);

/** What precedes and follows the steps has no number. */
export const stepName = (number) => (number === null ? "" : `Step ${number}`);

// Where the coordinator gives no advice with a job's end.
const ADVICE = {
  failed: "The log of the site that is named says more. Submit the job again once the cause is fixed.",
  refused: "Change the pipeline, or ask the site to change its policy; then submit the job again.",
};

/** What to do about a job that ended without a result. */
export const adviceFor = (state) => ADVICE[state] ?? "";
