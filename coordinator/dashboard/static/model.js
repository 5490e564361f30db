// A job's rounds, put into the groups and lanes that the timeline and the table both show.

import { stepName } from "./words.js";

const COORDINATOR = "@coordinator";

/** One lane for the coordinator, one for each site, and for whoever else has sent something. */
export function lanesOf(job) {
  return [...new Set([COORDINATOR, ...job.sites, ...job.rounds.flatMap((round) => Object.keys(round.senders))])];
}

/**
 * The rounds by step, in order, with what precedes the first step ("Admission") and follows it ("Outcome") apart.
 * Messages of one kind and direction in one step are one round, which is its key.
 */
export function groupRounds(job) {
  const groups = new Map();
  let stepped = false;
  for (const round of job.rounds) {
    stepped ||= round.step !== null;
    const key = `${round.step}/${round.kind}/${round.direction}`;
    groupFor(groups, job, round.step, stepped).rounds.push({ ...round, key, awaiting: new Map() });
  }
  for (const wait of job.awaiting) addWait(groups, job, wait, stepped);
  return [...groups.values()];
}

function groupFor(groups, job, step, stepped) {
  const key = step ?? (stepped ? "outcome" : "admission");
  if (!groups.has(key)) {
    const transform = job.steps.find((one) => one.number === step)?.transform;
    const title = { outcome: "Outcome", admission: "Admission" }[key] ?? `${stepName(step)}: ${transform}`;
    groups.set(key, { key: String(key), step, title, rounds: [] });
  }
  return groups.get(key);
}

/** A message that has not come yet belongs to its round, or to one that nobody has begun. */
function addWait(groups, job, wait, stepped) {
  const group = groupFor(groups, job, wait.step, stepped);
  let round = group.rounds.findLast((one) => one.kind === wait.kind && !(wait.site in one.senders));
  if (!round) {
    round = {
      key: `${wait.step}/${wait.kind}/awaited`,
      step: wait.step,
      kind: wait.kind,
      direction: "to-coordinator",
      first_ms: null,
      last_ms: null,
      messages: 0,
      bytes: 0,
      senders: {},
      awaiting: new Map(),
    };
    group.rounds.push(round);
  }
  round.awaiting.set(wait.site, wait.since_ms);
}

/** For each site that is awaited, since when and in which round (the longest wait counts). */
export function waitsBySite(job) {
  const waits = new Map();
  for (const wait of job.awaiting) {
    if (!waits.has(wait.site) || waits.get(wait.site).since_ms > wait.since_ms) waits.set(wait.site, wait);
  }
  return waits;
}
