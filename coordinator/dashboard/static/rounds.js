// The rounds as a table: one row a round, one column a party, grouped by step.

import { clock, setStart } from "./clock.js";
import { attr, el, keyed, parts, say } from "./dom.js";
import { groupRounds, lanesOf } from "./model.js";
import { bytes, plural, seconds, span } from "./units.js";
import { party } from "./words.js";

const DIRECTIONS = {
  "to-coordinator": "to the coordinator",
  "to-all": "from the coordinator to all",
  "from-coordinator": "from the coordinator to each",
  "between-sites": "between sites, sealed",
};
// Up to so many rounds every group is open at first; beyond, only the newest.
const ALL_OPEN = 60;
const LATE_MS = 1000;

export class RoundTable {
  constructor(page) {
    this.page = page;
    this.chosen = new Map(); // groups that the visitor opened or closed
    this.job = null;
  }

  update(job) {
    const frame = this.page["rounds-frame"];
    // Whoever looks at the newest rounds goes on seeing them; of a job that is done, one begins at the beginning.
    const atEnd = this.job ? frame.scrollTop + frame.clientHeight >= frame.scrollHeight - 4 : job.state !== "done";
    this.job = job;
    this.lanes = lanesOf(job);
    this.groups = groupRounds(job);
    keyed(
      this.page["rounds-head"],
      ["Round", "Began", "Took", "Bytes", ...this.lanes],
      (name) => name,
      makeHead,
      () => {},
    );
    keyed(
      this.page.rounds,
      this.rows(),
      (row) => row.key,
      (row) => this.make(row),
      (node, row) => this.refresh(node, row),
    );
    attr(this.page["no-rounds"], "hidden", this.groups.length > 0);
    const messages = job.rounds.reduce((sum, round) => sum + round.messages, 0);
    const count = job.training ? "" : `${plural(job.rounds.length, "round")}, `;
    say(this.page["rounds-summary"], `${count}${plural(messages, "message")}.`);
    if (atEnd) frame.scrollTop = frame.scrollHeight;
  }

  /** Open the group of a round and show its row. */
  reveal(key) {
    const group = this.groups.find((one) => one.rounds.some((round) => round.key === key));
    if (!group) return;
    this.chosen.set(group.key, true);
    this.update(this.job);
    const row = [...this.page.rounds.children].find((one) => one.dataset.round === key);
    row.scrollIntoView({ block: "center" });
    for (const other of this.page.rounds.querySelectorAll(".picked")) other.classList.remove("picked");
    row.classList.add("picked");
  }

  /** Groups and rounds in one list; the rounds of closed groups are not there at all. */
  rows() {
    return this.groups.flatMap((group, index) => {
      const newest = index === this.groups.length - 1;
      const open = this.chosen.get(group.key) ?? (newest || this.job.rounds.length <= ALL_OPEN);
      return [
        { key: `group ${group.key}`, group, open },
        ...(open ? group.rounds.map((round) => ({ key: round.key, round })) : []),
      ];
    });
  }

  make({ group, round }) {
    return group ? this.makeGroup(group) : this.makeRound(round);
  }

  refresh(node, { group, open, round }) {
    if (group) updateGroup(node, group, open);
    else this.updateRound(node, round);
  }

  makeGroup(group) {
    const button = el(
      "button",
      { class: "group-button", type: "button" },
      el("span", { "data-part": "title" }),
      el("span", { class: "muted", "data-part": "sums" }),
    );
    button.addEventListener("click", () => {
      this.chosen.set(group.key, button.getAttribute("aria-expanded") !== "true");
      this.update(this.job);
    });
    return el("tr", { class: "group-row" }, el("th", { scope: "colgroup", colspan: 4 + this.lanes.length }, button));
  }

  makeRound(round) {
    const cell = (name, label) => el("td", { class: "number", "data-part": name, "data-label": label });
    const name = el(
      "th",
      { scope: "row" },
      el("i", { class: "key", "data-direction": round.direction }),
      el("span", { class: "mono" }, round.kind),
      el("span", { class: "visually-hidden" }, `, ${DIRECTIONS[round.direction] ?? round.direction}`),
    );
    attr(name, "title", DIRECTIONS[round.direction]);
    const row = el("tr", { "data-round": round.key }, name, cell("began"), cell("took"), cell("bytes"));
    for (const lane of this.lanes) row.append(el("td", { class: "party", "data-lane": lane }));
    return row;
  }

  updateRound(row, round) {
    const { began, took, bytes: size } = parts(row);
    const begun = round.first_ms !== null;
    say(began, begun ? `+${seconds((round.first_ms - this.job.submitted_at_ms) / 1000)}` : "–");
    // Of many rounds together, from the first message to the last says nothing.
    const timed = begun && round.messages > 1 && !round.summed;
    say(took, timed ? seconds((round.last_ms - round.first_ms) / 1000) : "–");
    say(size, begun ? bytes(round.bytes) : "–");
    for (const cell of row.querySelectorAll("[data-lane]"))
      updateCell(cell, round, cell.dataset.lane, this.job.ended_at_ms);
  }
}

function makeHead(name) {
  const kind = { Round: "", Began: "number", Took: "number", Bytes: "number" }[name] ?? "party";
  return el("th", { scope: "col", class: kind }, party(name));
}

function updateGroup(node, group, open) {
  const { title, sums } = parts(node);
  const begun = group.rounds.filter((round) => round.first_ms !== null);
  const total = begun.reduce((sum, round) => sum + round.bytes, 0);
  attr(node.querySelector("button"), "aria-expanded", String(open));
  say(title, group.title);
  const took = begun.length
    ? Math.max(...begun.map((round) => round.last_ms)) - Math.min(...begun.map((round) => round.first_ms))
    : 0;
  const messages = begun.reduce((sum, round) => sum + round.messages, 0);
  const many = begun[0]?.rounds ? plural(messages, "message") : plural(begun.length, "round");
  say(sums, begun.length ? `${many} · ${bytes(total)} · ${seconds(took / 1000)}` : "");
}

/** When a party's message came, that it is awaited (or was, to the end), or that this round has none of it. */
function updateCell(cell, round, lane, endedMs) {
  const sent = round.senders[lane];
  const since = sent ? undefined : round.awaiting.get(lane);
  attr(cell, "data-awaited", since !== undefined);
  if (since !== undefined && endedMs !== null) {
    // The clock that stood here would run on.
    if (cell.firstElementChild) cell.replaceChildren();
    say(cell, `awaited ${span(endedMs - since)}`);
    return;
  }
  if (since !== undefined) {
    if (!cell.firstElementChild) cell.replaceChildren("awaited ", clock("since", since));
    setStart(cell.querySelector("time"), since);
    return;
  }
  const late = sent && !round.summed && sent.at_ms - round.first_ms >= LATE_MS;
  attr(cell, "data-late", Boolean(late));
  if (round.summed) say(cell, sent ? bytes(sent.bytes) : "");
  else say(cell, sent ? afterFirst(sent.at_ms - round.first_ms, Object.keys(round.senders).length) : "");
}

function afterFirst(ms, senders) {
  if (senders === 1) return "sent";
  return ms ? `+${seconds(ms / 1000)}` : "first";
}
