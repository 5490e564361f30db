// Bytes and seconds per protocol: bars inside a table, so that the chart is its own text.

import { attr, el, keyed, parts, say, svg } from "./dom.js";
import { bytes, plural, seconds } from "./units.js";
import { stepName } from "./words.js";

export class CostTable {
  constructor(page) {
    this.page = page;
  }

  update(job) {
    const rows = job.protocols;
    const most = {
      bytes: Math.max(1, ...rows.map((row) => row.bytes)),
      seconds: Math.max(1e-9, ...rows.map((row) => row.seconds)),
    };
    keyed(
      this.page.costs,
      rows,
      (row) => `${row.step} ${row.protocol}`,
      makeRow,
      (node, row) => {
        const cells = parts(node);
        say(cells.messages, row.messages.toLocaleString("en"));
        setBar(cells.bytes, bytes(row.bytes), row.bytes / most.bytes);
        setBar(cells.seconds, seconds(row.seconds), row.seconds / most.seconds);
      },
    );
    const sum = (field) => rows.reduce((total, row) => total + row[field], 0);
    say(
      this.page["costs-caption"],
      `In all ${plural(sum("messages"), "message")}, ${bytes(sum("bytes"))}, ${seconds(sum("seconds"))}.`,
    );
    attr(this.page["no-costs"], "hidden", rows.length > 0);
  }
}

function makeRow(row) {
  const bar = (name) =>
    el(
      "td",
      { "data-part": name },
      el(
        "div",
        { class: "bar-cell" },
        el("span", { class: "number" }),
        svg("svg", { class: `bar-chart bar-${name}`, "aria-hidden": "true" }, svg("rect", { height: "100%", rx: 3 })),
      ),
    );
  const name = el("th", { scope: "row" }, row.protocol, el("div", { class: "small muted" }, stepName(row.step)));
  return el("tr", {}, name, el("td", { class: "number", "data-part": "messages" }), bar("bytes"), bar("seconds"));
}

function setBar(cell, text, share) {
  say(cell.querySelector("span"), text);
  attr(cell.querySelector("rect"), "width", `${(100 * share).toFixed(1)}%`);
}
