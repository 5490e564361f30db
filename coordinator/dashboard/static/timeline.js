// The timeline: a lane for the coordinator and for each site, a mark for each message at its time, and a hatched bar
// with a running clock where a site is awaited. The table of rounds says the same in words.

import { now } from "./clock.js";
import { attr, el, keyed, say, svg } from "./dom.js";
import { groupRounds, lanesOf, waitsBySite } from "./model.js";
import { makeScale, roundTimes } from "./scale.js";
import { bytes, plural, seconds, span, time } from "./units.js";
import { OPEN, party } from "./words.js";

const LANE = 34;
const HEAD = 76; // a row for the steps, three for the names of rounds
const NAME_ROWS = [34, 48, 62];
const FOOT = 24;
const EDGE = 14;
const CHAR = 6.3; // the width of a letter, to keep names from overlapping
const WAIT = 116; // room for "awaited 12 min 34 s"
const DENSE = 14; // less room a round: smaller marks
const MAX_ZOOM = 64;
const SUMMED_POINTS = 12; // many rounds in one block take as much room as so many messages

export class Timeline {
  /** `onPick` is called with the key of a round that is clicked. */
  constructor(page, onPick) {
    this.page = page;
    this.job = null;
    this.zoom = 1;
    this.shortened = true;
    this.layers = {};
    const layer = (name) => (this.layers[name] = svg("g", { class: name }));
    const hatch = svg(
      "pattern",
      { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { width: 8, height: 8, class: "hatch-ground" }),
      svg("rect", { width: 3, height: 8, class: "hatch-line" }),
    );
    this.svg = svg(
      "svg",
      { role: "img", class: "chart" },
      svg("defs", {}, hatch),
      ...["groups", "titles", "lines", "axis", "rounds", "names", "waits"].map(layer),
    );
    page.track.append(this.svg);
    page["zoom-in"].addEventListener("click", () => this.setZoom(this.zoom * 2));
    page["zoom-out"].addEventListener("click", () => this.setZoom(this.zoom / 2));
    page["zoom-fit"].addEventListener("click", () => this.setZoom(1));
    page.scale.addEventListener("click", () => {
      this.shortened = !this.shortened;
      this.draw();
    });
    this.layers.rounds.addEventListener("click", (event) => {
      const round = event.target.closest("[data-round]");
      if (round) onPick(round.dataset.round);
    });
    new ResizeObserver(() => this.draw()).observe(page.track);
  }

  update(job) {
    this.job = job;
    this.draw();
  }

  setZoom(zoom) {
    const { track } = this.page;
    const middle = (track.scrollLeft + track.clientWidth / 2) / track.scrollWidth;
    this.zoom = Math.min(MAX_ZOOM, Math.max(1, zoom));
    this.draw();
    track.scrollLeft = middle * track.scrollWidth - track.clientWidth / 2;
  }

  draw() {
    const { job, page } = this;
    if (!job) return;
    const { track } = page;
    // Whoever looks at the newest end goes on seeing it.
    const atEnd = track.scrollLeft + track.clientWidth >= track.scrollWidth - 4;
    this.lanes = lanesOf(job);
    this.groups = groupRounds(job);
    this.open = OPEN.includes(job.state);
    this.width = Math.max(200, track.clientWidth) * this.zoom;
    this.height = HEAD + this.lanes.length * LANE + FOOT;
    attr(this.svg, "width", this.width);
    attr(this.svg, "height", this.height);
    attr(this.svg, "data-dense", this.width / job.rounds.length < DENSE);
    this.place = this.makePlace();
    this.drawLanes();
    this.drawGroups();
    this.drawRounds();
    this.drawAxis();
    this.drawWaits();
    this.describe();
    this.drawnEnd = this.lastPlace();
    if (atEnd) track.scrollLeft = track.scrollWidth;
  }

  /** As time goes on, the wait grows; what is before it moves little, and is only drawn anew when it shows. */
  tick() {
    if (!this.job || !OPEN.includes(this.job.state)) return;
    this.place = this.makePlace();
    if (Math.abs(this.lastPlace() - this.drawnEnd) >= 1) {
      this.draw();
    } else {
      this.drawAxis();
      this.drawWaits();
    }
  }

  /** Where the last message is. */
  lastPlace() {
    return this.place(Math.max(this.from, ...this.job.rounds.map((round) => round.last_ms)));
  }

  /** Time to x. Every message is a point of the scale, so that no two share a place that need not. */
  makePlace() {
    const { job } = this;
    this.from = job.submitted_at_ms;
    this.to = Math.max(job.ended_at_ms ?? now(), ...job.rounds.map((round) => round.last_ms));
    const times = new Set([this.from, this.to, ...job.awaiting.map((wait) => wait.since_ms)]);
    for (const round of job.rounds) {
      if (round.summed) for (const at of evenly(round.first_ms, round.last_ms, SUMMED_POINTS)) times.add(at);
      else for (const sent of Object.values(round.senders)) times.add(sent.at_ms);
    }
    const inside = [...times].filter((at) => at >= this.from && at <= this.to).sort((a, b) => a - b);
    this.scale = makeScale(inside, this.width - 2 * EDGE, this.shortened, job.awaiting.length ? WAIT : 0);
    return (ms) => Math.round((EDGE + this.scale.place(ms)) * 10) / 10;
  }

  laneY(name) {
    return HEAD + (this.lanes.indexOf(name) + 0.5) * LANE;
  }

  drawLanes() {
    const waits = waitsBySite(this.job);
    keyed(
      this.page.lanes,
      this.lanes,
      (name) => name,
      (name) => el("span", {}, party(name)),
      (node, name) => attr(node, "data-awaited", waits.has(name)),
    );
    keyed(
      this.layers.lines,
      this.lanes,
      (name) => name,
      () => svg("line", { class: "lane" }),
      (node, name) => {
        place(node, { x1: 0, x2: this.width, y1: this.laneY(name), y2: this.laneY(name) });
      },
    );
  }

  drawGroups() {
    const shown = this.groups
      .map(({ key, title, rounds }) => {
        const begun = rounds.filter((round) => round.first_ms !== null);
        const from = this.place(Math.min(...begun.map((round) => round.first_ms))) - 6;
        const to = this.place(Math.max(...begun.map((round) => round.last_ms))) + 6;
        const length = title.length * (CHAR + 0.7) + 12;
        // A title that would leave the drawing begins before its group.
        const at = Math.max(0, Math.min(from, this.width - length));
        return { key, title, from, to, at, end: at + length, some: begun.length > 0 };
      })
      .filter((group) => group.some);
    keyed(
      this.layers.groups,
      shown,
      (group) => group.key,
      () => svg("rect", { class: "group", rx: 6 }),
      (node, group) =>
        place(node, { x: group.from, y: 4, width: group.to - group.from, height: this.height - FOOT - 4 }),
    );
    // Where two titles would overlap, the wider group keeps its own.
    const titled = [];
    for (const group of [...shown].sort((a, b) => b.to - b.from - (a.to - a.from))) {
      if (titled.every((other) => group.end <= other.at || group.at >= other.end)) titled.push(group);
    }
    keyed(
      this.layers.titles,
      titled,
      (group) => group.key,
      () => svg("text"),
      (node, group) => {
        place(node, { x: group.at + 6, y: 18 });
        say(node, group.title);
      },
    );
  }

  drawRounds() {
    // Rounds that are added up are a block without marks.
    const all = this.groups.flatMap((group) => group.rounds);
    const rounds = all.filter((round) => round.first_ms !== null && !round.summed);
    keyed(
      this.layers.rounds,
      rounds,
      (round) => round.key,
      makeRound,
      (node, round) => this.updateRound(node, round),
    );
    this.drawNames(rounds);
  }

  updateRound(node, round) {
    const [from, to] = [this.place(round.first_ms), this.place(round.last_ms)];
    const rows = Object.keys(round.senders).map((name) => this.laneY(name));
    const [top, bottom] = [Math.min(...rows), Math.max(...rows)];
    place(node.firstElementChild, { x: from - 5, y: top - 8, width: to - from + 10, height: bottom - top + 16, rx: 5 });
    keyed(
      node.lastElementChild,
      Object.entries(round.senders),
      ([name]) => name,
      () => makeMark(round.direction),
      (mark, [name, sent]) => {
        attr(mark, "transform", `translate(${this.place(sent.at_ms)} ${this.laneY(name)})`);
        const after = seconds((sent.at_ms - this.from) / 1000);
        say(
          mark.lastElementChild,
          `${party(name)}: ${round.kind}, ${bytes(sent.bytes)}, at ${time(sent.at_ms)} (${after} after submission)`,
        );
      },
    );
  }

  /** As many names as there is room for, in three rows; zooming in makes room for more. */
  drawNames(rounds) {
    const free = NAME_ROWS.map(() => 0);
    const named = [];
    for (const round of rounds) {
      const from = this.place(round.first_ms) - 4;
      const width = round.kind.length * CHAR + 10;
      const x = Math.min(from, this.width - width);
      const row = free.findIndex((end) => end <= x);
      if (row < 0) continue;
      free[row] = x + width;
      named.push({ round, x, line: from + 4, y: NAME_ROWS[row] });
    }
    keyed(
      this.layers.names,
      named,
      (one) => one.round.key,
      makeName,
      (node, one) => {
        const [leader, name] = node.children;
        const end = Math.min(...Object.keys(one.round.senders).map((sender) => this.laneY(sender))) - 8;
        place(leader, { x1: one.line, x2: one.line, y1: one.y + 3, y2: end });
        place(name, { x: one.x, y: one.y });
        say(name, one.round.kind);
      },
    );
  }

  drawAxis() {
    const y = this.height - 7;
    const labels = [];
    let free = -Infinity;
    const add = (x, text, anchor) => {
      const width = text.length * CHAR + 8;
      const left = { start: x, middle: x - width / 2, end: x - width }[anchor];
      if (left < free || left + width > this.width + 2) return;
      free = left + width;
      labels.push({ key: labels.length, x, text, anchor });
    };
    if (this.shortened) {
      add(2, time(this.from), "start");
      const last = this.open ? "now" : time(this.to);
      const room = this.width - last.length * CHAR - 16;
      for (const pause of this.scale.pauses) {
        const [a, b] = [this.place(pause.from), this.place(pause.to)];
        const text = `↔ ${seconds(pause.ms / 1000)}`;
        if (b - a > text.length * CHAR && (a + b) / 2 + (text.length * CHAR) / 2 < room)
          add((a + b) / 2, text, "middle");
      }
      add(this.width - 2, last, "end");
    } else {
      for (const at of roundTimes(this.from, this.to, this.width / 90))
        add(this.place(at), `+${seconds((at - this.from) / 1000)}`, "start");
    }
    keyed(
      this.layers.axis,
      labels,
      (label) => label.key,
      () => svg("text"),
      (node, label) => {
        attr(node, "text-anchor", label.anchor);
        place(node, { x: label.x, y });
        say(node, label.text);
      },
    );
  }

  drawWaits() {
    const waits = [...waitsBySite(this.job).values()].filter((wait) => this.lanes.includes(wait.site));
    keyed(
      this.layers.waits,
      waits,
      (wait) => wait.site,
      makeWait,
      (node, wait) => {
        const [from, to, y] = [this.place(wait.since_ms), this.place(this.to), this.laneY(wait.site)];
        const [bar, text] = node.children;
        place(bar, { x: Math.min(from, to - 6), y: y - 11, width: Math.max(6, to - from), height: 22, rx: 4 });
        place(text, { x: to - 6, y: y + 4 });
        say(text, `awaited ${span(this.to - wait.since_ms)}`);
      },
    );
  }

  describe() {
    const { job, page } = this;
    const waits = [...waitsBySite(job).keys()];
    attr(
      this.svg,
      "aria-label",
      `Messages of ${plural(job.sites.length, "site")} and the coordinator in ${plural(job.rounds.length, "round")}` +
        `${waits.length ? `; awaited now: ${waits.join(", ")}` : ""}. The table below has them all.`,
    );
    say(page["scale-note"], this.shortened ? "Pauses are drawn shorter than they were." : "In true proportion.");
    attr(page.scale, "aria-pressed", String(!this.shortened));
    // Not disabled: that would take the focus away from under a finger on the key.
    attr(page["zoom-in"], "aria-disabled", String(this.zoom >= MAX_ZOOM));
    attr(page["zoom-out"], "aria-disabled", String(this.zoom <= 1));
  }
}

const evenly = (from, to, count) =>
  Array.from({ length: count }, (_, index) => Math.round(from + ((to - from) * index) / (count - 1)));

function place(node, numbers) {
  for (const [name, value] of Object.entries(numbers)) attr(node, name, value);
}

const makeRound = (round) =>
  svg("g", { "data-round": round.key, "data-direction": round.direction }, svg("rect", { class: "span" }), svg("g"));
const makeName = () => svg("g", {}, svg("line", { class: "leader" }), svg("text", { class: "name" }));
const makeWait = () =>
  svg(
    "g",
    {},
    svg("rect", { class: "wait", fill: "url(#hatch)" }),
    svg("text", { class: "wait-text", "text-anchor": "end" }),
  );

const SHAPES = {
  "to-coordinator": () => svg("circle", { r: 5 }),
  "to-all": () => svg("path", { d: "M-5.5 -4.5 L5.5 -4.5 L0 5.5 Z" }),
  "between-sites": () => svg("path", { d: "M0 -6 L6 0 L0 6 L-6 0 Z" }),
};
SHAPES["from-coordinator"] = SHAPES["to-all"];

function makeMark(direction) {
  return svg("g", { class: "mark-at" }, (SHAPES[direction] ?? SHAPES["to-coordinator"])(), svg("title"));
}
