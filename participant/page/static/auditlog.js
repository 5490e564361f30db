// The audit log: the newest lines, older ones on demand, and whether the chain holds.

import { now } from "./clock.js";
import { attr, el, keyed, say } from "./dom.js";
import { ask, post } from "./sitewords.js";
import { bytes, moment, plural } from "./units.js";

const PAGE = 100;
const $ = (id) => document.getElementById(id);

export class AuditView {
  constructor() {
    this.lines = [];
    this.busy = false;
    this.wanted = -1;
    $("more-lines").addEventListener("click", () => this.older());
    $("verify").addEventListener("click", () => this.verify());
  }

  update(audit) {
    this.showVerified(audit);
    if (audit.entries !== this.wanted) {
      this.wanted = audit.entries;
      this.newest();
    }
  }

  /** Fetch what has come since; one question at a time. */
  async newest() {
    if (this.busy) return;
    this.busy = true;
    let asked;
    do {
      asked = this.wanted;
      const found = await ask(`/api/audit?limit=${PAGE}`);
      if (!found) break;
      const first = found.lines.at(-1)?.line ?? 0;
      // Where more came than one answer holds, or the log is another one, the list begins anew.
      const joined = this.lines.length && this.lines[0].line >= first - 1 && this.lines[0].line <= found.entries;
      this.lines = joined ? [...found.lines, ...this.lines.filter((line) => line.line < first)] : found.lines;
      this.show();
    } while (asked !== this.wanted);
    this.busy = false;
  }

  async older() {
    const last = this.lines.at(-1).line;
    const found = await ask(`/api/audit?before=${last}&limit=${PAGE}`);
    if (!found) return;
    this.lines = [...this.lines.filter((line) => line.line >= last), ...found.lines];
    this.show();
  }

  show() {
    attr($("no-lines"), "hidden", this.lines.length > 0);
    attr($("more-lines"), "hidden", !this.lines.length || this.lines.at(-1).line <= 1);
    keyed($("lines"), this.lines, (line) => `${line.line} ${line.hash}`, makeLine, () => {});
  }

  async verify() {
    const button = $("verify");
    if (button.getAttribute("aria-disabled")) return;
    attr(button, "aria-disabled", "true");
    say(button, "Verifying …");
    const fault = await post("/api/verify", {});
    attr(button, "aria-disabled", null);
    say(button, "Verify the chain");
    if (fault) this.say("bad", [fault]);
  }

  showVerified({ entries, verified }) {
    const at = moment(verified.at_ms, now());
    if (!verified.intact) {
      this.say("bad", [`The chain does not hold (checked ${at}).`, verified.fault]);
      return;
    }
    const since = entries > verified.entries ? ` ${plural(entries - verified.entries, "line has", "lines have")} come since.` : "";
    const keep = verified.entries ? [`Last hash ${verified.last_hash}: keep it elsewhere, to notice if lines at the end go missing.`] : [];
    this.say("ok", [`The chain is intact: ${plural(verified.entries, "line")}, checked ${at}.${since}`, ...keep]);
  }

  say(tone, sentences) {
    attr($("verified"), "data-tone", tone);
    const lines = sentences.map((text, index) => ({ text, index }));
    keyed($("verified"), lines, (line) => line.index, () => el("p", { class: "wrap" }), (node, line) => say(node, line.text));
  }
}

const WORDS = { sent: "left", revealed: "revealed", decided: "decided", unreadable: "UNREADABLE" };

function message(line) {
  if (line.what === "decided") return `${line.decision} (${line.by})${line.reason ? `: “${line.reason}”` : ""}`;
  if (line.what === "revealed") return plural(line.disclosures?.length ?? 0, "disclosure");
  return line.kind ?? "";
}

function makeLine(line) {
  const at = Date.parse(line.at);
  const receiver = line.receiver === "@coordinator" ? "coordinator" : (line.receiver ?? "");
  return el("tr", { role: "row" },
    cell("Line", line.line.toLocaleString("en"), "number"),
    cell("When", Number.isNaN(at) ? "" : moment(at, now())),
    cell("What", WORDS[line.what] ?? line.what ?? ""),
    cell("Job", line.run ?? line.job ?? "", "mono"),
    cell("Message", message(line)),
    cell("To", receiver + (line.sealed ? ", sealed" : "")),
    cell("Bytes", line.bytes === undefined ? "" : bytes(line.bytes), "number"),
    cell("Hash", String(line.hash ?? "").slice(0, 12), "mono"));
}

const cell = (label, text, kind = "") => el("td", { role: "cell", "data-label": label, class: kind || null }, String(text));
