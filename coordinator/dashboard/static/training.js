// A training step: how far it is, how long a round takes, and where the job shows them, its pooled figures as curves.

import { clock, setStart } from "./clock.js";
import { Curve } from "./curve.js";
import { attr, el, keyed, say, svg } from "./dom.js";
import { waitsBySite } from "./model.js";
import { bytes, plural, seconds } from "./units.js";
import { OPEN, stepName } from "./words.js";

const FIGURES = { loss: "Loss", accuracy: "Accuracy", auc: "AUC" };
const LONG_NAMES = { ...FIGURES, auc: "Area under the ROC curve" };

// Of shares of rows: what differs by less is drawn as small as it is.
const LEAST_SPAN = 0.05;

/** The round that runs now, or null when none does. */
export function roundUnderWay(job) {
  const found = job.training;
  const open = found && OPEN.includes(job.state) && !found.stopped_early && found.done < found.rounds;
  return open ? found.done + 1 : null;
}

export class TrainingPanel {
  constructor(page) {
    this.page = page;
    this.bar = svg("rect", { height: "100%", rx: 3 });
    page["training-bar"].append(svg("svg", { class: "bar-chart bar-bytes", "aria-hidden": "true" }, this.bar));
  }

  update(job) {
    const { page } = this;
    const found = job.training ?? null;
    attr(page.training, "hidden", !found);
    if (!found) return;
    say(page["training-of"], `${stepName(found.step)}, model ${found.model}`);
    keyed(page["training-facts"], this.facts(job, found), ([name]) => name, makeFact, updateFact);
    attr(this.bar, "width", `${((100 * found.done) / found.rounds).toFixed(1)}%`);
    const shown = Object.keys(FIGURES).filter((name) => found.figures.some((one) => one[name] !== null));
    keyed(
      page.curves,
      shown,
      (name) => name,
      makeCurve,
      (node, name) => updateCurve(node, name, found.figures),
    );
    say(page["training-note"], note(found));
    this.updateTable(found.figures, shown);
  }

  facts(job, found) {
    const round = roundUnderWay(job);
    const sites = [...waitsBySite(job).keys()];
    const awaited = sites.length > 4 ? plural(sites.length, "site") : sites.join(", ") || "nobody";
    return [
      ["Round", round ? `${count(round)} of ${count(found.rounds)}` : ending(found)],
      ...(round ? [["It runs", found.since_ms, "since"]] : []),
      ["A round takes", found.mean_s === null ? "–" : seconds(found.mean_s)],
      ...(found.last_s === null ? [] : [["The last took", seconds(found.last_s)]]),
      ["Bytes a round", found.round_bytes === null ? "–" : bytes(found.round_bytes)],
      ["Bytes so far", bytes(found.bytes)],
      ...(round ? [["Awaited", awaited]] : []),
      ...(found.lost.length ? [["Goes on without", found.lost.join(", ")]] : []),
    ];
  }

  /** The same figures in words, newest first. */
  updateTable(figures, shown) {
    const { page } = this;
    attr(page["figures-table"], "hidden", !figures.length);
    keyed(page["figures-head"], ["Round", ...shown], (name) => name, makeHead, () => {});
    keyed(
      page.figures,
      [...figures].reverse(),
      (one) => one.round,
      () => el("tr"),
      (row, one) => {
        keyed(
          row,
          ["round", ...shown],
          (name) => name,
          (name) => (name === "round" ? el("th", { scope: "row", class: "number" }) : el("td", { class: "number" })),
          (cell, name) => say(cell, name === "round" ? count(one.round) : figure(name, one[name])),
        );
      },
    );
  }
}

const count = (value) => value.toLocaleString("en");

function ending(found) {
  if (found.stopped_early) return `${count(found.done)} of ${count(found.rounds)}, stopped early`;
  if (found.done === found.rounds) return `all ${count(found.rounds)} done`;
  return `ended after ${count(found.done)} of ${count(found.rounds)}`;
}

function note(found) {
  if (!found.observers) return "This job does not show its figures to observers.";
  if (!found.figures.length) return "No figures yet.";
  return "Pooled figures of all sites together, on rows that each keeps apart.";
}

export const figure = (name, value) => {
  if (value === null) return "–";
  return name === "loss" ? String(Number(value.toPrecision(4))) : value.toFixed(3);
};

const makeFact = ([name, , words]) => el("div", {}, el("dt", {}, name), el("dd", {}, words ? clock(words, 0) : ""));

function updateFact(node, [, value, words]) {
  if (words) setStart(node.lastElementChild.firstElementChild, value);
  else say(node.lastElementChild, value);
}

const makeHead = (name) => el("th", { scope: "col", class: "number" }, LONG_NAMES[name] ?? name);

const curves = new WeakMap();

function makeCurve(name) {
  const curve = new Curve(LONG_NAMES[name], (value) => figure(name, value), name === "loss" ? 0 : LEAST_SPAN);
  const caption = el("figcaption", {}, el("span", {}, LONG_NAMES[name]), el("strong"));
  const node = el("figure", { class: "curve", "data-figure": name }, caption, curve.node);
  curves.set(node, curve);
  return node;
}

function updateCurve(node, name, figures) {
  const points = figures.filter((one) => one[name] !== null).map((one) => [one.round, one[name]]);
  say(node.querySelector("strong"), figure(name, points.at(-1)[1]));
  curves.get(node).update(points);
}
