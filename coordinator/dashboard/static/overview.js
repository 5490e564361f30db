// The federation at a glance: coordinator and sites, jobs, refusals and errors.

import { announce } from "./announce.js";
import { clock, now, setStart } from "./clock.js";
import { attr, el, keyed, parts, say } from "./dom.js";
import { IncidentLog } from "./incidents.js";
import { JobList } from "./joblist.js";
import { date, daysUntil, moment, plural } from "./units.js";
import { badge, certificateLook, jobLook, OPEN, setBadge, siteLook } from "./words.js";

export class OverviewView {
  constructor(root) {
    this.parts = parts(root);
    this.jobs = new JobList(this.parts);
    this.incidents = new IncidentLog(this.parts);
    this.before = null;
  }

  update(data) {
    const online = data.sites.filter((site) => site.online).length;
    document.title = `${online} of ${plural(data.sites.length, "site")} online – commonscale`;
    say(this.parts.summary, this.summary(data, online));
    keyed(
      this.parts.faults,
      data.coordinator.faults,
      (fault) => fault,
      makeFault,
      () => {},
    );
    this.showCoordinator(data.coordinator);
    keyed(
      this.parts.sites,
      data.sites,
      (site) => site.name,
      makeSite,
      (node, site) => updateSite(node, site, data.coordinator.version),
    );
    this.jobs.update(data.jobs, data.totals);
    this.incidents.update(data.incidents, data.jobs);
    this.tellNews(data);
    this.before = data;
  }

  tick() {}

  showCoordinator(one) {
    const { coordinator } = this.parts;
    const facts = ["Version", "Replica", "Certificate"];
    if (!coordinator.firstElementChild) coordinator.append(el("h3", { class: "wrap" }), makeFacts(facts));
    say(coordinator.firstElementChild, `Coordinator: ${one.name}`);
    const { version, replica, certificate } = parts(coordinator);
    say(version, `${one.version} (protocol ${one.protocol})`);
    say(replica, one.replica);
    updateCertificate(certificate, one.certificate_expires_ms);
  }

  summary(data, online) {
    const ends = [data.coordinator, ...data.sites].map((one) => one.certificate_expires_ms).filter((at) => at !== null);
    const soonest = ends.length ? Math.min(...ends) : null;
    return [
      `${online} of ${plural(data.sites.length, "site")} online`,
      `${plural(data.totals.open, "job")} open`,
      soonest === null ? "" : `next certificate ends ${date(soonest)}`,
    ]
      .filter(Boolean)
      .join(" · ");
  }

  tellNews(data) {
    if (!this.before) return;
    const sites = new Map(this.before.sites.map((site) => [site.name, site]));
    for (const site of data.sites) {
      if (sites.has(site.name) && sites.get(site.name).online !== site.online) {
        announce(`site ${site.name}`, `${site.name} is ${site.online ? "online" : "offline"}.`);
      }
    }
    const jobs = new Map(this.before.jobs.map((job) => [job.id, job.state]));
    for (const job of data.jobs) {
      if (jobs.has(job.id) && jobs.get(job.id) !== job.state && !OPEN.includes(job.state)) {
        announce(`job ${job.id}`, `Job ${job.name}: ${jobLook(job.state)[2]}.`);
      }
    }
  }
}

function makeFault(fault) {
  return el("div", { class: "note", "data-tone": "bad" }, el("p", {}, fault));
}

/** Each fact has room for a badge that warns. */
function makeFacts(names) {
  const facts = el("dl", { class: "facts small" });
  for (const name of names) {
    const value = el("span", { "data-part": name.toLowerCase().replace(" ", "-") });
    facts.append(
      el("div", {}, el("dt", {}, name), el("dd", {}, value, " ", el("span", { class: "badge", hidden: true }))),
    );
  }
  return facts;
}

function makeSite(site) {
  const head = el(
    "div",
    { class: "member-head" },
    el("h3", { class: "wrap" }, site.name),
    badge(siteLook(site.online)),
  );
  return el(
    "li",
    { class: "card member", "data-site": site.name },
    head,
    makeFacts(["Version", "Last seen", "Certificate"]),
  );
}

function updateSite(node, site, version) {
  const { version: own, "last-seen": seen, certificate } = parts(node);
  attr(node, "data-offline", !site.online);
  setBadge(node.querySelector(".badge"), siteLook(site.online));
  say(own, site.version || "unknown");
  setBadge(own.nextElementSibling, site.version && site.version !== version ? ["warn", "triangle", "differs"] : null);
  updateSeen(seen, site.last_seen_ms);
  updateCertificate(certificate, site.certificate_expires_ms);
}

/** "3 s ago" runs; the exact time stands beside it. */
function updateSeen(node, atMs) {
  if (atMs === null) {
    say(node, "never");
    return;
  }
  if (!node.firstElementChild) node.replaceChildren(clock("ago", atMs), " ", el("span", { class: "muted" }));
  setStart(node.firstElementChild, atMs);
  say(node.lastElementChild, `(${moment(atMs, now())})`);
}

function updateCertificate(node, endsMs) {
  if (endsMs === null) {
    say(node, "unknown");
    setBadge(node.nextElementSibling, null);
    return;
  }
  const days = daysUntil(endsMs, now());
  say(node, days < 0 ? `ended ${date(endsMs)}` : `${plural(days, "day")} left (${date(endsMs)})`);
  setBadge(node.nextElementSibling, certificateLook(days));
}
