// A job's rounds, put into the groups and lanes that the timeline and the table both show.

import { stepName } from "./words.js";

const COORDINATOR = "@coordinator";

/** One lane for the coordinator, one for each site, and for whoever else has sent something. */
export function lanesOf(job) {
  return [...new Set([COORDINATOR, ...job.sites, ...job.rounds.flatMap((round) => Object.keys(round.senders))])];
}

/**
 * The rounds by step, in order, with what precedes the first step ("Admission") and follows it ("Outcome") apart.
 * Messages of one kind and direction in one step are one round, which is its key. Of a session, the round that runs now
 * is a group, and those before it, added up, are another.
 */
export function groupRounds(job) {
  const groups = new Map();
  let stepped = false;
  for (const round of job.rounds) {
    stepped ||= round.step !== null;
    const key = `${round.step}${spanOf(round)}/${round.kind}/${round.direction}`;
    groupFor(groups, job, round, stepped).rounds.push({ ...round, key, awaiting: new Map() });
  }
  for (const wait of job.awaiting) addWait(groups, job, wait, stepped);
  return [...groups.values()];
}

const spanOf = (round) => (round.rounds ? (round.summed ? " before" : " now") : "");

function groupFor(groups, job, round, stepped) {
  const { step } = round;
  const key = step === null ? (stepped ? "outcome" : "admission") : `${step}${spanOf(round)}`;
  if (!groups.has(key)) {
    const transform = job.steps.find((one) => one.number === step)?.transform;
    const title = { outcome: "Outcome", admission: "Admission" }[key] ?? `${stepName(step)}: ${transform}`;
    groups.set(key, { key, step, title: title + roundsOf(round, job), summed: Boolean(round.summed), rounds: [] });
  }
  return groups.get(key);
}

/** Which rounds of a session: ", round 17 of 50" or ", rounds 1 to 16". */
function roundsOf(round, job) {
  if (!round.rounds) return "";
  const [from, to] = round.rounds;
  if (to > from) return `, rounds ${from} to ${to}`;
  return `, round ${to}${job.training && !round.summed ? ` of ${job.training.rounds}` : ""}`;
}

/** A message that has not come yet belongs to its round, or to one that nobody has begun. */
function addWait(groups, job, wait, stepped) {
  const behind = wait.round && [...groups.values()].some((one) => one.step === wait.step && endsWith(one, wait.round));
  const rounds = wait.round ? [wait.round, wait.round] : null;
  const group = groupFor(groups, job, { step: wait.step, rounds, summed: behind }, stepped);
  let round = group.rounds.findLast((one) => one.kind === wait.kind && !(wait.site in one.senders));
  if (!round) {
    round = {
      key: `${group.key}/${wait.kind}/awaited`,
      step: wait.step,
      rounds,
      summed: false,
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

/** Whether a round is among those of a session that are added up. */
const endsWith = (group, number) => group.summed && group.rounds.some((one) => one.rounds[1] >= number);

/** For each site that is awaited, since when and in which round (the longest wait counts). */
export function waitsBySite(job) {
  const waits = new Map();
  for (const wait of job.awaiting) {
    if (!waits.has(wait.site) || waits.get(wait.site).since_ms > wait.since_ms) waits.set(wait.site, wait);
  }
  return waits;
}
