// The coordinator's dashboard: picks the view by the address and feeds it from its live stream.

import { now, setClock, startClocks } from "./clock.js";
import { attr, say } from "./dom.js";
import { JobView } from "./job.js";
import { follow } from "./live.js";
import { OverviewView } from "./overview.js";
import { setBadge } from "./words.js";

const CONNECTIONS = {
  live: ["ok", "disc", "Live"],
  reconnecting: ["warn", "triangle", "Reconnecting"],
};

const main = document.getElementById("main");
const connection = document.getElementById("connection");

function show(template) {
  main.replaceChildren(document.getElementById(template).content.cloneNode(true));
}

function setConnection(state) {
  setBadge(connection, CONNECTIONS[state]);
  attr(main, "data-stale", state !== "live");
}

/** The bar on top tells whose page this is. */
function setBar({ coordinator, visitor }) {
  say(document.getElementById("whose"), coordinator.name);
  say(document.getElementById("logout"), `Log out ${visitor}`);
}

function start(view, path, stream, event) {
  follow(path, stream, event, {
    onData: (data) => {
      setClock(data.now_ms);
      setBar(data);
      view.update(data);
    },
    onState: setConnection,
    onMissing: () => {
      show("view-missing");
      document.title = "No such job – commonscale";
      attr(connection, "hidden", true);
    },
  });
  startClocks(() => view.tick(now()));
}

const job = location.pathname.match(/^\/jobs\/([^/]+)$/);
if (job) {
  show("view-job");
  const path = `/api/jobs/${job[1]}`;
  start(new JobView(main), path, `${path}/events`, "job");
} else {
  show("view-overview");
  start(new OverviewView(main), "/api/overview", "/api/events", "overview");
}
