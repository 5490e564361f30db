// The log of refusals and errors, each with what to do.

import { now } from "./clock.js";
import { attr, el, keyed, parts, say } from "./dom.js";
import { moment, plural } from "./units.js";
import { badge, incidentLook } from "./words.js";

export class IncidentLog {
  constructor(page) {
    this.page = page;
  }

  update(incidents, jobs) {
    // One that happens again moves up and counts on: its time is no part of what it is.
    const keyOf = (one) => JSON.stringify([one.what, one.who, one.message]);
    keyed(this.page.incidents, incidents, keyOf, (one) => makeRow(one, jobs), updateRow);
    say(this.page["incidents-caption"], `${plural(incidents.length, "entry", "entries")}, newest first.`);
    attr(this.page["no-incidents"], "hidden", incidents.length > 0);
  }
}

function makeRow(one, jobs) {
  const row = el("tr", { role: "row", "data-what": one.what });
  const message = el("td", { role: "cell" }, el("p", { class: "wrap" }, one.message));
  if (one.remedy) message.append(el("p", { class: "wrap remedy" }, el("strong", {}, "What to do: "), one.remedy));
  row.append(
    el("td", { role: "cell", class: "nowrap" }, el("time", { "data-part": "at" })),
    el(
      "td",
      { role: "cell" },
      badge(incidentLook(one.what)),
      el("span", { class: "small muted nowrap", "data-part": "times" }),
    ),
    el("td", { role: "cell", class: "wrap" }, who(one.who, jobs)),
    message,
  );
  return row;
}

function updateRow(row, one) {
  const { at, times } = parts(row);
  say(at, moment(one.at_ms, now()));
  attr(at, "datetime", new Date(one.at_ms).toISOString());
  say(times, one.times > 1 ? ` ${plural(one.times, "time")}` : "");
}

/** A job that is in the list is a link to its page. */
function who(name, jobs) {
  const id = name.match(/^job (\S+)$/)?.[1];
  const job = id && jobs.find((one) => one.id.startsWith(id));
  return job ? el("a", { href: `/jobs/${encodeURIComponent(job.id)}` }, name) : name;
}
