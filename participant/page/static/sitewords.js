// What several views of the site's page say alike.

import { el } from "./dom.js";
import { plural } from "./units.js";

const SHOWN_COLUMNS = 40;

/** Who learns something: everyone, all sites, or names. */
function audience(names, sites) {
  const others = names.filter((name) => !sites.includes(name));
  const all = sites.length > 1 && sites.every((site) => names.includes(site));
  if (!all) return names.join(", ");
  return [...others, `all ${sites.length} sites`].join(", ");
}

/** One line of what is revealed, to whom, and by which step; some only where what was opened before asks for it. */
export function revealRow(line, sites) {
  const by = line.step === undefined ? line.protocol : `step ${line.step + 1}, ${line.protocol}`;
  const may = line.may ? [" ", el("span", { class: "small muted" }, "(may be opened)")] : [];
  return el("tr", { role: "row" },
    el("th", { role: "rowheader", scope: "row" }, line.what, ...may),
    el("td", { role: "cell", "data-label": "To" }, audience(line.to, sites)),
    el("td", { role: "cell", "data-label": "By" }, by));
}

/** Columns by name; the rest of a long list opens on demand. */
export function columnList(columns) {
  const shown = el("span", { class: "columns" }, columns.slice(0, SHOWN_COLUMNS).join(", "));
  const rest = columns.slice(SHOWN_COLUMNS);
  if (!rest.length) return [shown];
  return [shown, el("details", {}, el("summary", {}, `and ${plural(rest.length, "more column")}`), el("span", {}, rest.join(", ")))];
}

/** Post JSON; returns what went wrong as a sentence, or nothing. */
export async function post(path, body) {
  try {
    const answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    if (answer.status === 401) location.assign("/login");
    if (answer.ok) return "";
    const found = await answer.json().catch(() => ({}));
    return found.error ?? `The daemon answered with status ${answer.status}.`;
  } catch {
    return "The daemon does not answer. Is it running?";
  }
}

/** Ask for JSON; null where there is none. */
export async function ask(path) {
  try {
    const answer = await fetch(path);
    if (answer.status === 401) location.assign("/login");
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}
