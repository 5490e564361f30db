// One job: where it stands, its timeline, what it cost, what it revealed, and why it ended.

import { announce } from "./announce.js";
import { clock, now, setStart } from "./clock.js";
import { columnsOf } from "./columns.js";
import { CostTable } from "./costs.js";
import { DisclosureTable } from "./disclosures.js";
import { attr, el, keyed, parts, say } from "./dom.js";
import { waitsBySite } from "./model.js";
import { RoundTable } from "./rounds.js";
import { Timeline } from "./timeline.js";
import { roundUnderWay, TrainingPanel } from "./training.js";
import { moment, plural, seconds, span } from "./units.js";
import { adviceFor, jobLook, OPEN, setBadge, stepName } from "./words.js";

// Rounds take milliseconds. Only a wait that lasts is worth a warning, or a word.
const LONG_WAIT_MS = 5000;

export class JobView {
  constructor(root) {
    this.page = parts(root);
    this.rounds = new RoundTable(this.page);
    this.timeline = new Timeline(this.page, (round) => this.rounds.reveal(round));
    this.training = new TrainingPanel(this.page);
    this.costs = new CostTable(this.page);
    this.disclosures = new DisclosureTable(this.page);
    this.job = null;
    this.told = "";
  }

  update(job) {
    const before = this.job;
    this.job = job;
    say(this.page.name, job.name || job.id);
    say(this.page.id, job.id);
    setBadge(this.page.state, jobLook(job.state));
    this.showFacts();
    this.showSteps();
    this.showEnding();
    this.training.update(job);
    this.timeline.update(job);
    this.rounds.update(job);
    this.costs.update(job);
    this.disclosures.update(job);
    this.tick();
    if (before && before.state !== job.state)
      announce("state", `The job is ${jobLook(job.state)[2].toLowerCase()}. ${job.error}`);
  }

  /** What changes with time alone. */
  tick() {
    if (!this.job) return;
    this.showAwaited();
    this.timeline.tick();
  }

  showFacts() {
    const { job } = this;
    const open = OPEN.includes(job.state);
    const facts = [
      ["Analyst", job.analyst],
      ["Data set", job.dataset],
      ["Sites", job.sites.join(", ")],
      ["Submitted", moment(job.submitted_at_ms, now())],
      open
        ? ["Deadline", job.deadline_at_ms, "left"]
        : ["Ended", moment(job.ended_at_ms ?? job.submitted_at_ms, now())],
      open
        ? ["Runs", job.submitted_at_ms, "since"]
        : ["Took", seconds(((job.ended_at_ms ?? 0) - job.submitted_at_ms) / 1000)],
    ];
    const make = ([name, , words]) => el("div", {}, el("dt", {}, name), el("dd", {}, words ? clock(words, 0) : ""));
    keyed(
      this.page.facts,
      facts,
      ([name]) => name,
      make,
      (node, [, value, words]) => {
        if (words) setStart(node.lastElementChild.firstElementChild, value);
        else say(node.lastElementChild, value);
      },
    );
  }

  showSteps() {
    const { job } = this;
    const reached = Math.max(-1, ...job.rounds.map((round) => round.step ?? -1), job.progress?.step ?? -1);
    const status = (number) => {
      if (job.state === "done" || number < reached) return ["ok", "check", "done"];
      if (number > reached) return ["quiet", "ring", OPEN.includes(job.state) ? "not begun" : "not reached"];
      return OPEN.includes(job.state) ? ["info", "disc", "running"] : ["bad", "cross", "not finished"];
    };
    const make = (step) =>
      el(
        "li",
        {},
        el("i", { class: "mark" }),
        el(
          "div",
          { class: "wrap" },
          el("strong", {}, `${stepName(step.number)}: ${step.transform}`),
          el("span", { class: "step-status" }),
          el("div", { class: "small muted" }, step.protocol),
          el("div", { class: "small muted" }, columnsOf(step.columns)),
        ),
      );
    keyed(
      this.page.steps,
      job.steps,
      (step) => step.number,
      make,
      (node, step) => {
        const [tone, shape, word] = status(step.number);
        attr(node, "data-tone", tone);
        attr(node.firstElementChild, "data-shape", shape);
        say(node.querySelector(".step-status"), ` ${word}`);
      },
    );
  }

  showEnding() {
    const { job, page } = this;
    const bad = !OPEN.includes(job.state) && job.state !== "done";
    attr(page.ending, "hidden", !bad);
    if (!bad) return;
    attr(page.ending, "data-tone", jobLook(job.state)[0]);
    say(page["ending-title"], `${jobLook(job.state)[2]} at ${moment(job.ended_at_ms ?? now(), now())}`);
    const advice = job.remedy || adviceFor(job.state);
    // Some errors end with the advice.
    say(page.error, job.error.endsWith(advice) ? job.error.slice(0, -advice.length || undefined) : job.error);
    if (page.remedy.textContent !== `What to do: ${advice}`)
      page.remedy.replaceChildren(el("strong", {}, "What to do: "), advice);
    attr(page.remedy, "hidden", !advice);
  }

  showAwaited() {
    const { job, page } = this;
    const open = OPEN.includes(job.state);
    const waits = [...waitsBySite(job).values()];
    const longest = waits.length ? now() - Math.min(...waits.map((wait) => wait.since_ms)) : 0;
    // A worker may train for minutes: while it takes no longer than usual, nobody need look.
    const long = longest >= Math.max(LONG_WAIT_MS, 2000 * (job.training?.mean_s ?? 0));
    attr(page.awaited, "hidden", !open);
    const round = roundUnderWay(job);
    const calm = round ? `Round ${round} of ${job.training.rounds}` : jobLook(job.state)[2];
    const state = open && long ? `Waits for ${names(waits)}` : calm;
    document.title = `${state} – ${job.name || job.id} – commonscale`;
    if (!open) return;
    attr(page.awaited, "data-tone", long ? "warn" : "info");
    say(page["awaited-title"], waits.length ? `Waiting for ${names(waits)}` : "The coordinator is at work");
    attr(page["awaited-hint"], "hidden", job.state !== "inviting" || !long);
    keyed(page["awaited-list"], waits, (wait) => wait.site, makeWait, updateWait);
    if (long && this.told !== names(waits)) announce("awaited", `Waiting for ${names(waits)} for ${span(longest)}.`);
    this.told = long ? names(waits) : "";
  }
}

const names = (waits) => (waits.length > 4 ? plural(waits.length, "site") : waits.map((wait) => wait.site).join(", "));

function makeWait(wait) {
  return el(
    "li",
    {},
    el("strong", {}, wait.site),
    el("span", { class: "mono" }),
    el("span"),
    clock("since", wait.since_ms),
  );
}

function updateWait(node, wait) {
  const [, kind, step, since] = node.children;
  say(kind, wait.kind);
  const round = wait.round ? `, round ${wait.round}` : "";
  say(step, wait.step === null ? "since" : `of step ${wait.step}${round}, since`);
  setStart(since, wait.since_ms);
}
