// News for screen readers: what changed, in a sentence, and never more than one in a few seconds.

import { say } from "./dom.js";

const PAUSE_MS = 4000;

let waiting = [];
let timer = 0;

/** Have a sentence read out when the visitor is idle; of one subject only the last. */
export function announce(subject, sentence) {
  waiting = [...waiting.filter((item) => item.subject !== subject), { subject, sentence }];
  timer ||= setTimeout(speak, 500);
}

function speak() {
  say(document.getElementById("news"), waiting.map((item) => item.sentence).join(" "));
  waiting = [];
  timer = setTimeout(() => {
    timer = 0;
    if (waiting.length) speak();
  }, PAUSE_MS);
}
