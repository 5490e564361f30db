// The jobs, newest first, with a filter that the address remembers.

import { clock, now, setStart } from "./clock.js";
import { attr, el, keyed, parts, say } from "./dom.js";
import { moment, plural, seconds, span } from "./units.js";
import { badge, jobLook, OPEN, setBadge } from "./words.js";

const FILTERS = {
  all: "All",
  open: "Open",
  done: "Done",
  failed: "Failed",
  refused: "Refused",
  cancelled: "Cancelled",
};

export class JobList {
  constructor(page) {
    this.page = page;
    this.jobs = [];
    this.totals = {};
    const address = new URLSearchParams(location.search);
    this.state = FILTERS[address.get("state")] ? address.get("state") : "all";
    this.page.search.value = address.get("find") ?? "";
    for (const [state, word] of Object.entries(FILTERS)) {
      const button = el("button", { class: "button", type: "button", "data-state": state }, word);
      button.addEventListener("click", () => {
        this.state = state;
        this.filter();
      });
      this.page.states.append(button);
    }
    this.page.search.addEventListener("input", () => this.filter());
  }

  update(jobs, totals) {
    this.jobs = jobs;
    this.totals = totals;
    this.show();
  }

  filter() {
    const address = new URLSearchParams();
    if (this.state !== "all") address.set("state", this.state);
    if (this.page.search.value) address.set("find", this.page.search.value);
    history.replaceState(null, "", address.size ? `?${address}` : location.pathname);
    this.show();
  }

  show() {
    for (const button of this.page.states.children) {
      const state = button.dataset.state;
      attr(button, "aria-pressed", String(state === this.state));
      say(button, state in this.totals ? `${FILTERS[state]} ${this.totals[state]}` : FILTERS[state]);
    }
    const shown = this.jobs.filter((job) => this.wanted(job));
    keyed(this.page.jobs, shown, (job) => job.id, makeRow, updateRow);
    say(this.page["jobs-caption"], this.caption(shown.length));
    attr(this.page["no-jobs"], "hidden", shown.length > 0);
    say(this.page["no-jobs"], this.jobs.length ? "No job fits the filter." : "No job was submitted yet.");
  }

  wanted(job) {
    const words = this.page.search.value.trim().toLowerCase().split(/\s+/);
    const text = [job.id, job.name, job.analyst, ...job.sites].join(" ").toLowerCase();
    const fits = this.state === "all" || (this.state === "open" ? OPEN.includes(job.state) : job.state === this.state);
    return fits && words.every((word) => text.includes(word));
  }

  caption(shown) {
    const all = Object.values(this.totals).reduce((sum, count) => sum + count, 0);
    const older = all - this.jobs.length;
    const some = shown < this.jobs.length ? `${shown} of ${plural(this.jobs.length, "job")}` : plural(shown, "job");
    return `${some}, newest first.${older > 0 ? ` ${plural(older, "older job")} not listed.` : ""}`;
  }
}

function makeRow(job) {
  const cell = (name, label, kind) => el("td", { role: "cell", class: kind, "data-part": name, "data-label": label });
  const link = el("a", { href: `/jobs/${encodeURIComponent(job.id)}` }, job.name || job.id);
  const row = el("tr", { role: "row", "data-job": job.id });
  row.append(
    el("td", { role: "cell" }, badge(jobLook(job.state))),
    el("th", { role: "rowheader", scope: "row" }, link, el("div", { class: "mono muted wrap job-id" }, job.id)),
    cell("analyst", "Analyst"),
    cell("sites", "Sites"),
    cell("submitted", "Submitted", "nowrap"),
    cell("took", "Took", "nowrap"),
    cell("now", "Now"),
  );
  return row;
}

function updateRow(row, job) {
  const { analyst, sites, submitted, took, now: progress } = parts(row);
  setBadge(row.querySelector(".badge"), jobLook(job.state));
  say(analyst, job.analyst);
  say(sites, job.sites.length > 4 ? plural(job.sites.length, "site") : job.sites.join(", "));
  attr(sites, "title", job.sites.join(", "));
  say(submitted, moment(job.submitted_at_ms, now()));
  updateTook(took, job);
  if (job.progress && OPEN.includes(job.state)) updateProgress(progress, job.progress, job.training);
  else if (!job.error) progress.replaceChildren();
  else if (progress.textContent !== job.error)
    progress.replaceChildren(el("span", { class: "wrap clamp", title: job.error }, job.error));
  attr(progress, "data-label", OPEN.includes(job.state) ? "Now" : "Why");
}

function updateTook(node, job) {
  if (job.ended_at_ms !== null) {
    say(node, seconds((job.ended_at_ms - job.submitted_at_ms) / 1000));
    attr(node, "title", null);
    return;
  }
  if (!node.firstElementChild) node.replaceChildren(clock("since", job.submitted_at_ms));
  attr(node, "title", `deadline in ${span(job.deadline_at_ms - now())}`);
}

/** "south awaited in mean.Masked since 14 s"; of a training, in which round. */
function updateProgress(node, progress, training) {
  if (!progress.awaited.length || !progress.since_ms) {
    say(node, progress.round ? `working after ${progress.round}` : "working");
    return;
  }
  if (!node.querySelector("time")) {
    node.replaceChildren(el("span", {}, el("strong"), el("span"), clock("since", progress.since_ms)));
  }
  const [who, what, since] = node.firstElementChild.children;
  say(who, progress.awaited.join(", "));
  const round = training && training.done < training.rounds ? `round ${training.done + 1} of ${training.rounds}` : "";
  say(what, ` awaited in ${round || progress.round} since `);
  setStart(since, progress.since_ms);
}
