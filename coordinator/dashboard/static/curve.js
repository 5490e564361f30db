// A curve of one figure over rounds: drawn as wide as it is shown, with a few round numbers beside it.

import { attr, el, keyed, say, svg } from "./dom.js";

const HEIGHT = 150;
const [LEFT, RIGHT, TOP, FOOT] = [44, 12, 10, 22];
const MANY = 60; // from so many points on, only the newest has a mark of its own

export class Curve {
  /** `words` says a value; the curve is at least `span` high. */
  constructor(title, words, span) {
    this.title = title;
    this.words = words;
    this.span = span;
    this.points = [];
    this.layers = Object.fromEntries(["grid", "ticks", "dots"].map((name) => [name, svg("g", { class: name })]));
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    this.svg = svg(
      "svg",
      { role: "img", height: HEIGHT },
      this.layers.grid,
      this.area,
      this.line,
      this.layers.dots,
      this.layers.ticks,
    );
    this.node = el("div", { class: "curve-frame" }, this.svg);
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  /** Pairs of round and value, the oldest first. */
  update(points) {
    this.points = points;
    this.draw();
  }

  draw() {
    const { points } = this;
    const width = this.node.clientWidth;
    if (!points.length || !width) return;
    attr(this.svg, "width", width);
    const values = points.map(([, value]) => value);
    const [low, high, ticks] = niceRange(Math.min(...values), Math.max(...values), this.span);
    const [first, last] = [points[0][0], points.at(-1)[0]];
    const x = (round) => place(LEFT + ((round - first) / (last - first || 1)) * (width - LEFT - RIGHT));
    const y = (value) => place(TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - FOOT));
    const path = points.map(([round, value]) => `${x(round)} ${y(value)}`).join(" L");
    attr(this.line, "d", points.length > 1 ? `M${path}` : null);
    attr(this.area, "d", points.length > 1 ? `M${path} L${x(last)} ${y(low)} L${x(first)} ${y(low)} Z` : null);
    this.drawTicks(width, ticks, y, first, last, x);
    this.drawDots(x, y);
    const said = ([round, value]) => `${this.words(value)} after round ${round}`;
    const label = `${this.title}, from ${said(points[0])} to ${said(points.at(-1))}. The table below has all of it.`;
    attr(this.svg, "aria-label", label);
  }

  drawTicks(width, ticks, y, first, last, x) {
    keyed(
      this.layers.grid,
      ticks,
      (tick) => tick,
      () => svg("line"),
      (node, tick) => set(node, { x1: LEFT, x2: width - RIGHT, y1: y(Number(tick)), y2: y(Number(tick)) }),
    );
    const labels = [
      ...ticks.map((tick) => ({ key: `y ${tick}`, text: tick, x: LEFT - 8, y: y(Number(tick)) + 4, anchor: "end" })),
      { key: "first", text: `round ${first}`, x: x(first), y: HEIGHT - 5, anchor: "start" },
      ...(last > first ? [{ key: "last", text: String(last), x: x(last), y: HEIGHT - 5, anchor: "end" }] : []),
    ];
    keyed(
      this.layers.ticks,
      labels,
      (label) => label.key,
      () => svg("text"),
      (node, label) => {
        set(node, { x: label.x, y: label.y, "text-anchor": label.anchor });
        say(node, label.text);
      },
    );
  }

  drawDots(x, y) {
    const newest = this.points.length - 1;
    const few = this.points.length <= MANY;
    keyed(
      this.layers.dots,
      this.points,
      ([round]) => round,
      () => svg("g", {}, svg("circle", { class: "near", r: 8 }), svg("circle"), svg("title")),
      (node, [round, value]) => {
        const [near, dot, words] = node.children;
        const isNewest = round === this.points[newest][0];
        for (const circle of [near, dot]) set(circle, { cx: x(round), cy: y(value) });
        attr(dot, "r", isNewest ? 4.5 : few ? 2.5 : 0);
        attr(node, "data-newest", isNewest);
        say(words, `round ${round}: ${this.words(value)}`);
      },
    );
  }
}

const place = (value) => Math.round(value * 10) / 10;

function set(node, values) {
  for (const [name, value] of Object.entries(values)) attr(node, name, value);
}

/** A range around all values that begins and ends with a round number, and the round numbers in it as texts. */
export function niceRange(low, high, atLeast) {
  const missing = Math.max(0, atLeast - (high - low)) / 2;
  const [least, most] = [low - missing, high + missing];
  const span = most - least || Math.abs(most) || 1;
  const rough = span / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const [from, to] = [Math.floor(least / step + 1e-9), Math.ceil(most / step - 1e-9)];
  const last = to > from ? to : from + 1;
  const ticks = [];
  for (let at = from; at <= last; at += 1) ticks.push((at * step).toFixed(Math.min(digits, 12)));
  return [from * step, last * step, ticks];
}
