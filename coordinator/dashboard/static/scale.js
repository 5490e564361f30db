// From time to place on the timeline.
//
// A job may wait ten minutes for a person and then run forty rounds in half a second. In true proportion either the
// rounds or the wait cannot be seen. So by default a pause of length g takes k·ln(1 + g/k): as long as it is up to the
// usual pause k, and ever less beyond it.

/** A scale over all these times (ms, in order) from 0 to `width`, whose last pause takes at least `tail`. */
export function makeScale(times, width, shortened, tail) {
  const gaps = times.slice(1).map((time, index) => time - times[index]);
  const usual = usualGap(gaps);
  const length = (gap) => (shortened ? usual * Math.log1p(gap / usual) : gap);
  const places = [0];
  for (const gap of gaps) places.push(places.at(-1) + length(gap));
  const [all, before] = [places.at(-1) || 1, places.at(-2) ?? 0];
  const last = Math.max(tail, ((all - before) / all) * width);
  const at = new Map(times.map((time, index) => [time, before ? (places[index] / before) * (width - last) : 0]));
  at.set(times.at(-1), width);
  return {
    place: (time) => at.get(time) ?? between(times, at, time, width),
    pauses: shortened ? pausesOf(times, gaps, usual) : [],
  };
}

function usualGap(gaps) {
  const some = gaps.filter((gap) => gap > 0).sort((a, b) => a - b);
  return some.length ? some[Math.floor(some.length / 2)] : 1;
}

/** Pauses that are drawn much shorter than they were, to be labelled. */
function pausesOf(times, gaps, usual) {
  return gaps
    .map((gap, index) => ({ from: times[index], to: times[index + 1], ms: gap }))
    .filter(({ ms }) => ms > 8 * usual && ms > 500);
}

function between(times, at, time, width) {
  const next = times.findIndex((one) => one >= time);
  if (next < 0) return width;
  if (next === 0) return 0;
  const [a, b] = [times[next - 1], times[next]];
  return at.get(a) + ((time - a) / (b - a)) * (at.get(b) - at.get(a));
}

/** Round times for an axis in true proportion: at most `most` of them. */
export function roundTimes(fromMs, toMs, most) {
  const steps = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 1.8e6, 3.6e6, 2.16e7, 8.64e7,
  ];
  const step = steps.find((one) => (toMs - fromMs) / one <= most) ?? steps.at(-1);
  const found = [];
  for (let ms = 0; ms <= toMs - fromMs; ms += step) found.push(fromMs + ms);
  return found;
}
