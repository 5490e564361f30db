// Jobs of this site: what each sent, to whom, and what it revealed. A job's details are fetched when it is opened.

import { now } from "./clock.js";
import { attr, el, keyed, parts, say } from "./dom.js";
import { ask, revealRow } from "./sitewords.js";
import { bytes, moment, plural } from "./units.js";

const PAGE = 30;
const $ = (id) => document.getElementById(id);

const LOOKS = {
  waiting: ["warn", "triangle", "waits for you"],
  refused: ["quiet", "bar", "refused here"],
  open: ["info", "ring", "running"],
  done: ["ok", "check", "done"],
  failed: ["bad", "cross", "no result"],
};

const look = (job) => {
  if (job.waiting) return LOOKS.waiting;
  if (job.approval === "refused") return LOOKS.refused;
  return LOOKS[job.state] ?? ["quiet", "ring", job.state];
};

export class JobsView {
  constructor() {
    this.newest = [];
    this.older = [];
    $("more-jobs").addEventListener("click", () => this.more());
  }

  update(newest) {
    // A job that leaves the newest because others came stays on the page, if older ones are shown.
    const keys = new Set(newest.map((job) => job.job));
    if (this.older.length) this.older = [...this.newest.filter((job) => !keys.has(job.job)), ...this.older];
    this.newest = newest;
    if (newest.length < PAGE) attr($("more-jobs"), "hidden", true);
    else if (!this.older.length) attr($("more-jobs"), "hidden", null);
    attr($("no-jobs"), "hidden", newest.length > 0);
    keyed($("jobs"), newest, (job) => job.job, makeJob, updateJob);
    keyed($("older-jobs"), this.older, (job) => job.job, makeJob, updateJob);
  }

  async more() {
    const last = this.older.at(-1) ?? this.newest.at(-1);
    const found = await ask(`/api/jobs?before=${encodeURIComponent(last.job)}&limit=${PAGE}`);
    if (!found) return;
    const first = this.older.length;
    this.older = [...this.older, ...found.jobs];
    keyed($("older-jobs"), this.older, (job) => job.job, makeJob, updateJob);
    attr($("more-jobs"), "hidden", found.jobs.length < PAGE);
    $("older-jobs").children[first]?.querySelector("summary").focus();
  }
}

function makeJob() {
  const node = $("job").content.firstElementChild.cloneNode(true);
  node.addEventListener("toggle", () => load(node));
  return node;
}

function updateJob(node, job) {
  const part = (node.pieces ??= parts(node));
  const [tone, shape, words] = look(job);
  attr(part.state, "data-tone", tone);
  attr(part.state, "data-shape", shape);
  say(part.state, words);
  say(part.name, job.name || "job");
  say(part.id, job.job);
  say(part.who, `${job.analyst} · ${job.dataset} · ${moment(job.received_ms, now())}`);
  say(part.left, job.messages ? `${plural(job.messages, "message")}, ${bytes(job.bytes)}` : "nothing left");
  const changed = node.job && JSON.stringify(node.job) !== JSON.stringify(job);
  node.job = job;
  if (changed) load(node);
}

async function load(node) {
  if (!node.open) return;
  if (node.loading) {
    node.again = true;
    return;
  }
  node.loading = true;
  const found = await ask(`/api/jobs/${encodeURIComponent(node.job.job)}`);
  node.loading = false;
  if (found) node.pieces.body.replaceChildren(...details(found));
  else node.pieces.body.replaceChildren(el("p", { class: "fault" }, "The daemon does not answer."));
  if (node.again) {
    node.again = false;
    load(node);
  }
}

function details(job) {
  return [
    el("p", { class: "wrap" }, `With ${job.sites.join(", ")}. Asked for: ${job.asks}.`),
    ...decisionOf(job),
    ...(job.error ? [el("p", { class: "note", "data-tone": "bad" }, job.error)] : []),
    el("div", {}, el("h3", {}, "What left"), leftTable(job)),
    el("div", {}, el("h3", {}, "What was revealed"), revealedTable(job)),
  ];
}

function decisionOf(job) {
  if (job.approval !== "approved" && job.approval !== "refused") return [];
  const by = { page: " on this page", command: " by command" }[job.decided_by] ?? "";
  const at = job.decided_ms ? `, ${moment(job.decided_ms, now())}` : "";
  const reason = job.reason ? `: “${job.reason}”` : "";
  return [el("p", { class: "wrap" }, `${job.approval === "approved" ? "Approved" : "Refused"}${by}${at}${reason}`)];
}

const cell = (label, text, kind = "") => el("td", { role: "cell", "data-label": label, class: kind || null }, text);

function table(caption, names, rows, numbers = []) {
  const heads = names.map((name) => el("th", { scope: "col", role: "columnheader", class: numbers.includes(name) ? "number" : null }, name));
  return el("div", { class: "frame" }, el("table", { class: "table stacks", role: "table" },
    el("caption", { class: "visually-hidden" }, caption), el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads)), el("tbody", { role: "rowgroup" }, ...rows)));
}

function leftTable(job) {
  if (!job.left.length) return el("p", { class: "muted" }, "Nothing.");
  const rows = job.left.map((group) => el("tr", { role: "row" },
    cell("Protocol", group.run.includes("/") ? `step ${Number(group.run.split("/")[1]) + 1}, ${group.protocol}` : group.protocol),
    cell("To", group.receiver),
    cell("Sealed", group.sealed ? `sealed to ${group.receiver}` : "no: for the coordinator"),
    cell("Messages", group.messages.toLocaleString("en"), "number"),
    cell("Bytes", bytes(group.bytes), "number")));
  return table(`What left in ${job.job}, by protocol and receiver`, ["Protocol", "To", "Sealed", "Messages", "Bytes"], rows, ["Messages", "Bytes"]);
}

function revealedTable(job) {
  const inSteps = job.left.some((group) => group.run.includes("/"));
  if (!job.revealed && !inSteps) return el("p", { class: "muted" }, "Nothing of this site's data.");
  const lines = job.revealed ? job.revealed.disclosures : (job.asked?.reveals ?? []);
  const rows = lines.map((line) => revealRow(line, job.sites));
  const found = table(`What ${job.job} revealed, and to whom`, ["What", "To", "By"], rows);
  if (job.revealed) return found;
  return el("div", {}, el("p", { class: "muted" }, "The job has not come to its end here: some of this, at most."), found);
}
