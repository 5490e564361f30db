// The disclosure report: who learned what.

import { columnsOf } from "./columns.js";
import { attr, el, keyed, say } from "./dom.js";
import { OPEN, party, stepName } from "./words.js";

export class DisclosureTable {
  constructor(page) {
    this.page = page;
  }

  update(job) {
    // An entry never changes once it is there.
    keyed(this.page.disclosures, job.disclosures, JSON.stringify, makeRow, () => {});
    attr(this.page["no-disclosures"], "hidden", job.disclosures.length > 0);
    say(
      this.page["no-disclosures"],
      OPEN.includes(job.state) ? "Nothing was revealed yet." : "Nothing was revealed to anyone.",
    );
  }
}

function makeRow(one) {
  const to = el("ul", { class: "chips" }, ...one.to.map((name) => el("li", {}, party(name))));
  return el(
    "tr",
    { role: "row" },
    el("th", { scope: "row", role: "rowheader", class: "wrap" }, one.what),
    // What admission reveals is of no step and of no column in particular.
    el("td", { role: "cell", "data-label": "Of columns" }, columnsOf(one.columns ?? [])),
    el(
      "td",
      { role: "cell", "data-label": "By" },
      el("span", {}, one.protocol, el("div", { class: "small muted" }, stepName(one.step ?? null))),
    ),
    el("td", { role: "cell", "data-label": "To" }, to),
  );
}
