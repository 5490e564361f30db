// The live stream of one thing, by server-sent events. EventSource reconnects by itself after most faults. What it
// gives up on (a login that ended, an error as an answer) and cannot notice (a line that is dead, not quiet) is here.

const RETRY_MS = [1000, 2000, 4000, 8000];
const QUIET_MS = 30_000;
const PATIENCE_MS = 10_000;

/**
 * Follow what `path` answers, live through `stream`. Calls onData with every new state, onState with "live" or
 * "reconnecting", onMissing if there is no such thing.
 */
export function follow(path, stream, event, { onData, onState, onMissing }) {
  let source = null;
  let failures = 0;
  let timer = 0;

  const later = (work, ms) => {
    clearTimeout(timer);
    timer = setTimeout(work, ms);
  };

  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };

  const open = () => {
    close();
    source = new EventSource(stream);
    // A stream begins with the state as it is.
    source.addEventListener(event, (message) => {
      failures = 0;
      onData(JSON.parse(message.data));
      onState("live");
      later(ask, QUIET_MS);
    });
    source.onerror = () => {
      onState("reconnecting");
      later(ask, source.readyState === EventSource.CLOSED ? 0 : PATIENCE_MS);
    };
    later(ask, PATIENCE_MS);
  };

  // The stream was refused, does not come or has been quiet for long: the plain answer tells more.
  const ask = async () => {
    const asked = source;
    const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS) }).catch(() => null);
    if (asked !== source) return; // opened or closed in the meantime
    if (answer?.status === 401) location.assign("/login");
    else if (answer?.status === 404) {
      close();
      onMissing();
    } else if (answer?.ok && (document.hidden || source?.readyState === EventSource.OPEN)) {
      onData(await answer.json());
      later(ask, QUIET_MS);
    } else {
      onState("reconnecting");
      later(document.hidden ? ask : open, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
    }
  };

  // A browser has six connections to a server, and a stream takes one: many tabs in the background would starve the one
  // in front. There, a question now and then keeps the title true.
  document.addEventListener("visibilitychange", () => {
    close();
    if (document.hidden) later(ask, QUIET_MS);
    else open();
  });
  // A page that is left gives its connection back at once; one that is come back to by "Back" opens it again.
  addEventListener("pagehide", close);
  addEventListener("pageshow", (shown) => shown.persisted && open());
  open();
}
