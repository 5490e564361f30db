// The site's page: follows the daemon's state and hands each part of it to its view.

import { announce } from "./announce.js";
import { AuditView } from "./auditlog.js";
import { setClock, startClocks, now } from "./clock.js";
import { attr, el, keyed, say } from "./dom.js";
import { follow } from "./live.js";
import { JobsView } from "./sitejobs.js";
import { bytes, date, daysUntil, moment, plural } from "./units.js";
import { WaitingView } from "./waiting.js";
import { WorkerView } from "./worker.js";

const RENEW_DAYS = 30;

const $ = (id) => document.getElementById(id);
const waiting = new WaitingView();
const jobs = new JobsView();
const audit = new AuditView();
const worker = new WorkerView($("worker"));
let state = null;

function update(fresh) {
  const before = state;
  state = fresh;
  const count = state.waiting.length;
  document.title = `${count ? `(${count}) ` : ""}site ${state.site} – commonscale`;
  say($("site"), `Site ${state.site}`);
  say($("summary"), summary(count));
  keyed($("faults"), faults(), (fault) => fault, (fault) => el("p", { class: "note", "data-tone": "bad" }, fault), () => {});
  waiting.update(state.waiting, state.jobs);
  jobs.update(state.jobs);
  say($("totals"), totals());
  worker.update(state.worker);
  facts($("policy"), policy(state.policy));
  facts($("connection"), connection(state.connection));
  facts($("data"), state.data.map((source) => [source.name, source.file]));
  audit.update(state.audit);
  if (before && before.connection.connected !== state.connection.connected) {
    announce("connection", `The coordinator is ${state.connection.connected ? "connected" : "not connected"}.`);
  }
}

function summary(count) {
  const { connected, coordinator, certificate } = state.connection;
  return [
    connected ? `Connected to ${coordinator}` : `Not connected to ${coordinator}`,
    `certificate ends ${date(certificate.until_ms)}`,
    count ? `${plural(count, "job")} ${count === 1 ? "waits" : "wait"} for you` : "no job waits for you",
  ].join(" · ");
}

function faults() {
  const { connected, faults: found, certificate } = state.connection;
  const days = daysUntil(certificate.until_ms, now());
  return [
    ...found.map((fault) => (connected ? fault : `Not connected: ${fault}`)),
    ...(days < RENEW_DAYS ? [`This site's certificate ${days < 0 ? "has ended" : `ends in ${plural(days, "day")}`}. Run commonscale enroll renew.`] : []),
  ];
}

function totals() {
  const { messages, bytes: size, unread } = state.left;
  if (unread > 0) return `Reading the audit log: ${Math.round(100 * (1 - unread))} % so far.`;
  return messages ? `${plural(messages, "message has", "messages have")} left this site, ${bytes(size)} in all. Rows never do.` : "";
}

/** Names with values, changed in place. */
function facts(list, rows) {
  const flat = rows.flatMap(([name, value]) => [{ key: `dt ${name}`, tag: "dt", text: name }, { key: `dd ${name}`, tag: "dd", text: value }]);
  keyed(list, flat, (item) => item.key, (item) => el(item.tag), (node, item) => say(node, item.text));
}

const listed = (values) => values.join(", ") || "none";
const patterns = (values) => (values.includes("*") ? "all" : listed(values));

function policy(found) {
  return [
    ["Approval", found.approval === "manual" ? "a person decides on every job" : "automatic, by the rules below"],
    ["Analysts", patterns(found.analysts)],
    ["Columns", patterns(found.columns)],
    ["Transforms", listed(found.transforms)],
    ["Methods", listed(found.methods)],
    ["Never revealed", listed(found.never_reveal)],
    ["Fewest rows", found.min_rows.toLocaleString("en")],
    ["Fewest sites", String(found.min_sites)],
    ["Insecure test profile", found.test_profile ? "ALLOWED: not for patients' data" : "refused"],
  ];
}

function connection(found) {
  return [
    ["Coordinator", found.coordinator],
    ["State", `${found.connected ? "connected" : "not connected"} since ${moment(found.since_ms, now())}`],
    ["Certificate", `${date(found.certificate.from_ms)} to ${date(found.certificate.until_ms)}, ${plural(Math.max(0, daysUntil(found.certificate.until_ms, now())), "day")} left`],
    ["Issued by", found.certificate.issuer],
    ["Fingerprint", found.certificate.fingerprint],
    ["Release", `commonscale ${state.version}`],
  ];
}

function stream(live) {
  const badge = $("stream");
  say(badge, live ? "Live" : "Reconnecting");
  attr(badge, "data-tone", live ? "ok" : "warn");
  attr(badge, "data-shape", live ? "disc" : "ring");
}

// Behind a tunnel, the visitor's clock is another one than the daemon's.
fetch("/api/state").then((answer) => {
  const there = Date.parse(answer.headers.get("date") ?? "");
  if (Math.abs(there - Date.now()) > 5000) setClock(there);
}).catch(() => {});

startClocks(() => {});
follow("/api/state", "/api/events", "state", { onData: update, onState: (word) => stream(word === "live"), onMissing: () => stream(false) });
