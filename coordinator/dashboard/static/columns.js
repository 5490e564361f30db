// Names of columns: a few in full, many on demand.

import { el } from "./dom.js";
import { plural } from "./units.js";

const FEW = 6;

export function columnsOf(columns) {
  const all = el("span", { class: "wrap" }, columns.join(", ") || "–");
  return columns.length <= FEW ? all : el("details", {}, el("summary", {}, plural(columns.length, "column")), all);
}
