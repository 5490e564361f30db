// Jobs that wait for a person. A card is made once and stays as it is, so that focus and a half-typed reason survive.

import { announce } from "./announce.js";
import { clock } from "./clock.js";
import { attr, el, keyed, parts, say } from "./dom.js";
import { columnList, post, revealRow } from "./sitewords.js";
import { plural } from "./units.js";

const $ = (id) => document.getElementById(id);

export class WaitingView {
  constructor() {
    this.known = null;
  }

  update(waiting, jobs) {
    const keys = new Set(waiting.map((job) => job.job));
    const gone = [...(this.known?.values() ?? [])].filter((job) => !keys.has(job.job));
    const held = gone.some((job) => $(`ask-${job.job}`)?.contains(document.activeElement));
    keyed($("asks"), waiting, (job) => job.job, makeAsk, () => {});
    attr($("nothing-waits"), "hidden", waiting.length > 0);
    for (const job of gone) this.tell(job, jobs.find((row) => row.job === job.job));
    for (const job of waiting) {
      if (this.known && !this.known.has(job.job)) announce(`ask ${job.job}`, `Job ${job.name} of ${job.analyst} waits for your decision.`);
    }
    if (held) $("waiting-title").focus();
    this.known = new Map(waiting.map((job) => [job.job, job]));
  }

  /** How a job that waited has ended its waiting: by us, by somebody else, or because it is over. */
  tell(job, row) {
    const how = { approved: "approved", refused: "refused" }[row?.approval];
    const by = row?.decided_by === "command" ? " by command" : "";
    say($("decided"), how ? `${job.name} (${job.job}) was ${how}${by}.` : `${job.name} (${job.job}) is over; nobody decided on it.`);
    attr($("decided"), "data-tone", how === "approved" ? "ok" : "quiet");
  }
}

function makeAsk(job) {
  const node = $("ask").content.firstElementChild.cloneNode(true);
  const part = parts(node);
  node.id = `ask-${job.job}`;
  part.name.id = `name-${job.job}`;
  attr(node, "aria-labelledby", part.name.id);
  say(part.name, job.name);
  say(part.id, job.job);
  part.left.append(clock("left", job.until_ms));
  part.who.append(
    "Analyst ", el("b", {}, job.analyst), " asks to compute on data set ", el("b", {}, job.dataset),
    ` together with ${plural(job.others.length, "other site")}: `, el("b", {}, job.others.join(", ")), ".",
  );
  attr(part.warnings, "hidden", job.warnings.length === 0);
  part["warning-list"].append(...job.warnings.map((warning) => el("li", {}, warning)));
  part.steps.append(...job.steps.map(makeStep));
  part.reveals.append(...job.reveals.map((line) => revealRow(line, job.sites)));
  decision(part, job);
  return node;
}

function makeStep(step) {
  const how = [
    `protocol ${step.protocol}`,
    step.methods.length ? `pooled by ${step.methods.join(" and ")}` : "pools nothing",
    step.beside.length ? `also reads ${step.beside.join(", ")}` : "",
  ].filter(Boolean).join(" · ");
  const asks = step.asks.length ? `asks the rows for ${step.asks.join("; ")}` : "asks nothing of the rows";
  const node = el("li", {}, el("span", {}, `${step.transform} of `), ...columnList(step.columns), el("span", { class: "small muted" }, how));
  node.append(el("span", { class: "small muted" }, asks));
  if (step.options.length) node.append(el("span", { class: "small mono muted" }, step.options.join(", ")));
  if (step.why && step.why !== "asked for") node.append(el("span", { class: "small muted" }, `chosen for ${step.why}`));
  return node;
}

function decision(part, job) {
  part.reason.id = `reason-${job.job}`;
  part.fault.id = `fault-${job.job}`;
  attr(part["reason-label"], "for", part.reason.id);
  attr(part.reason, "aria-describedby", part.fault.id);
  attr(part.approve, "aria-label", `Approve ${job.name}`);
  attr(part.refuse, "aria-label", `Refuse ${job.name}`);

  const send = async (verb, body) => {
    for (const button of [part.approve, part.refuse]) attr(button, "aria-disabled", "true");
    say(part.fault, "");
    const fault = await post(`/api/jobs/${job.job}/${verb}`, body);
    for (const button of [part.approve, part.refuse]) attr(button, "aria-disabled", null);
    // What was decided comes back with the next state, and takes the card away.
    say(part.fault, fault);
  };
  const busy = () => part.approve.getAttribute("aria-disabled") === "true";

  part.approve.addEventListener("click", () => busy() || send("approve", {}));
  part.form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (busy()) return;
    const reason = part.reason.value.trim();
    attr(part.reason, "aria-invalid", reason ? null : "true");
    if (reason) send("refuse", { reason });
    else {
      say(part.fault, "Say why: the analyst sees the reason.");
      part.reason.focus();
    }
  });
}
