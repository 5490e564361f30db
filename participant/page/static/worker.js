// The site's ML worker: whether it is there, what it offers, what it works on, and its last error. Only this page shows it.

import { announce } from "./announce.js";
import { now } from "./clock.js";
import { attr, el, keyed, parts, say } from "./dom.js";
import { moment } from "./units.js";

const LOOKS = {
  "not attached": ["warn", "ring", "Not attached"],
  waiting: ["ok", "disc", "Attached, waits for work"],
  working: ["info", "disc", "Attached, at work"],
};

export class WorkerView {
  constructor(root) {
    this.root = root;
    this.part = parts(root);
    this.known = null;
  }

  update(worker) {
    attr(this.root, "hidden", !worker);
    if (!worker) return;
    const { part } = this;
    const [tone, shape, words] = LOOKS[worker.state] ?? ["quiet", "bar", worker.state];
    attr(part.state, "data-tone", tone);
    attr(part.state, "data-shape", shape);
    say(part.state, words);
    const attached = worker.state !== "not attached";
    say(part.software, attached ? `Runs ${worker.software}.` : "Start commonscale-worker run with this site's models; a job that trains is refused until it is there.");
    attr(part.task, "hidden", !worker.task);
    say(part.doing, worker.task);
    attr(part.share, "value", worker.share);
    say(part.percent, `${Math.round(100 * worker.share)} %`);
    attr(part["models-frame"], "hidden", !worker.models.length);
    keyed(part.models, worker.models, (model) => `${model.name} ${model.digest}`, makeModel, updateModel);
    attr(part.error, "hidden", !worker.last_error);
    say(part["error-title"], worker.last_error ? `Last error, ${moment(worker.last_error_ms, now())}` : "");
    say(part["error-text"], worker.last_error);
    if (this.known && this.known.state !== worker.state && (this.known.state === "not attached" || !attached))
      announce("worker", attached ? "The worker is attached." : "The worker is not attached any more.");
    this.known = worker;
  }
}

function makeModel(model) {
  return el("tr", { role: "row" },
    el("th", { role: "rowheader", scope: "row" }, model.name),
    el("td", { role: "cell", "data-label": "Policy" }),
    el("td", { role: "cell", "data-label": "Digest", class: "mono small wrap" }, model.digest));
}

function updateModel(row, model) {
  const word = model.pinned ? "pinned" : model.in_policy ? "refused: the policy pins another digest" : "refused: the policy does not name it";
  say(row.children[1], word);
  attr(row, "data-tone", model.pinned ? "ok" : "warn");
}
