// Numbers as people read them, always with their unit.

/** 780 B, 3.1 kB, 90 kB, 1.4 MB (powers of ten). */
export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit && value < 9.95 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** A measured time: 3 ms, 0.31 s, 14.2 s, 2 min 5 s. */
export function seconds(value) {
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.995) return `${value.toFixed(2)} s`;
  if (value < 59.95) return `${value.toFixed(1)} s`;
  return span(value * 1000);
}

/** A running or a long time, in whole seconds: 14 s, 2 min 5 s, 1 h 3 min, 3 d 4 h. */
export function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  const [m, h, d] = [Math.floor(s / 60), Math.floor(s / 3600), Math.floor(s / 86400)];
  if (d) return `${d} d ${h % 24} h`;
  if (h) return `${h} h ${m % 60} min`;
  return m ? `${m} min ${s % 60} s` : `${s} s`;
}

/** Whole days until a time; negative once it has passed. */
export const daysUntil = (ms, now) => Math.floor((ms - now) / 86_400_000);

/** 1 day, 3 days. */
export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

const two = (value) => String(value).padStart(2, "0");

/** 2026-11-17, in the visitor's time zone. */
export function date(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** 14:03:09, in the visitor's time zone. */
export function time(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Date and time; of today, the time alone. */
export const moment = (ms, now) => (date(ms) === date(now) ? time(ms) : `${date(ms)} ${time(ms)}`);
