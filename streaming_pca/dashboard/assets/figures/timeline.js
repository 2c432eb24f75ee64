// Axes of time in the reader's zone, ranges of time, and rates. Pure functions; times are in milliseconds.

const DAY = 86400e3;
/** Time around a single moment, in milliseconds. */
const LEAST_MARGIN = 30e3;
/** Margin after the present, as a part of the range. */
const NEXT = 0.02;
/** Ranges of time: value, name, words in a sentence, and length. */
export const RANGES = [
  { value: "hour", title: "Hour", words: "in the last hour", length: 3600e3 },
  { value: "day", title: "Day", words: "in the last day", length: DAY },
  { value: "week", title: "Week", words: "in the last week", length: 7 * DAY },
  { value: "all", title: "All", words: "so far", length: Infinity },
];
/** Steps between the marks of an axis: fields of a date by their place, year to second, and lengths. */
const STEPS = [
  ...[1, 2, 5, 10, 30].map((n) => [5, n, 1e3 * n]),
  ...[1, 2, 5, 10, 15, 30].map((n) => [4, n, 60e3 * n]),
  ...[1, 2, 3, 6, 12].map((n) => [3, n, 3600e3 * n]),
  ...[1, 2, 3, 4, 7, 14].map((n) => [2, n, DAY * n]),
  ...[1, 3, 6].map((n) => [1, n, 30 * DAY * n]),
  ...[1, 2, 5, 10, 20, 50].map((n) => [0, n, 365 * DAY * n]),
];
const FORMATS = [
  { year: "numeric" },
  { month: "short", year: "numeric" },
  { day: "numeric", month: "short" },
  { hour: "2-digit", minute: "2-digit" },
  { hour: "2-digit", minute: "2-digit" },
  { hour: "2-digit", minute: "2-digit", second: "2-digit" },
].map((format) => new Intl.DateTimeFormat("en-GB", format));
const WHOLE_DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const ZONED = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" });

/** Return the shown part of time, which is ``span`` of a range without an end; null without times in it. */
export function domain(range, times, now, span = [times[0], times.at(-1)]) {
  const { length } = RANGES.find((r) => r.value === range);
  if (!times.length || times.at(-1) < now - length) return null;
  // Without a margin, marks at the present would be cut in half.
  if (length < Infinity) return [now - length, now + NEXT * length];
  const [first, last] = span;
  const margin = Math.max((last - first) * 0.03, LEAST_MARGIN);
  return [first - margin, last + margin];
}

/** Return marks at round local times, at most ``most``: [time, text] each. */
export function marks([from, to], most) {
  const [place, n] = STEPS.find(([, , step]) => (to - from) / step <= most * (1 + 2 * NEXT)) ?? STEPS.at(-1);
  const begin = new Date(from);
  const fields = [begin.getFullYear(), begin.getMonth(), begin.getDate(), begin.getHours(), begin.getMinutes(), begin.getSeconds()];
  // Weeks begin on Mondays; other steps of days with the month.
  if (place === 2) fields[2] -= n % 7 ? (fields[2] - 1) % n : (begin.getDay() + 6) % 7;
  else fields[place] -= fields[place] % n;
  const found = [];
  for (let i = 0; ; i += 1) {
    // Local fields, so that marks stay at round times when the clock is put back or forward.
    const [year, month = 0, ...rest] = fields.slice(0, place + 1).map((field, at) => (at === place ? field + i * n : field));
    const time = new Date(year, month, ...(rest.length ? rest : [1])).getTime();
    if (time > to) return found;
    if (time < from || time === found.at(-1)?.[0]) continue;
    const midnight = place > 2 && new Date(time).getHours() + new Date(time).getMinutes() + new Date(time).getSeconds() === 0;
    found.push([time, FORMATS[midnight ? 2 : place].format(time)]);
  }
}

/** Return plotly's axis of a part of time, as wide as ``width`` letters. */
export function timeAxis([from, to], letters) {
  const most = (wide) => Math.max(2, Math.floor(letters / wide));
  // Marks with seconds are wider.
  const found = marks([from, to], most(to - from <= 30e3 * most(5) ? 10 : 5));
  const [first, last] = [from, to].map((time) => WHOLE_DAY.format(time));
  const zone = ZONED.formatToParts(to).find((part) => part.type === "timeZoneName").value;
  return {
    title: { text: `${first === last ? first : "Time"}, ${zone}` },
    type: "linear", range: [from, to], tickmode: "array", tickvals: found.map(([time]) => time), ticktext: found.map(([, text]) => text), tickangle: 0,
  };
}

/**
 * Return the rates of a growing total: a second, each over ``least`` milliseconds or more, as steps that end
 * at x. The total is null in a gap. What is left before a gap or the end is a step of its own, or part of the
 * last one if it is far shorter.
 */
export function rates(times, totals, least) {
  const [x, y] = [[], []];
  let [ends, last] = [[], 0];
  const close = () => {
    if (last > ends.at(-1) && times[last] > times[ends.at(-1)]) {
      const isShort = ends.length > 1 && times[last] - times[ends.at(-1)] < least / 4;
      ends.splice(ends.length - isShort, isShort, last);
    }
    ends.slice(1).forEach((end, n) => {
      const rate = 1000 * (totals[end] - totals[ends[n]]) / (times[end] - times[ends[n]]);
      x.push(...(n ? [] : [times[ends[n]]]), times[end]);
      y.push(...(n ? [] : [rate]), rate);
    });
    ends = [];
  };
  times.forEach((time, i) => {
    if (totals[i] === null || totals[i] < totals[ends.at(-1)]) {
      close();
      x.push(time);
      y.push(null);
    }
    if (totals[i] === null) return;
    if (!ends.length || time - times[ends.at(-1)] >= Math.max(least, 1)) ends.push(i);
    last = i;
  });
  close();
  return { x, y };
}

/** Join points of the same interval of ``length`` milliseconds: last time, smallest and largest value; null in a gap. */
export function joined(times, low, high, length) {
  const found = [];
  let interval = null;
  times.forEach((time, i) => {
    const own = low[i] === null ? null : Math.floor(time / length);
    if (own === null || own !== interval) found.push([time, low[i], high[i]]);
    else {
      const [, least, most] = found.pop();
      found.push([time, Math.min(least, low[i]), Math.max(most, high[i])]);
    }
    interval = own;
  });
  return found;
}

/** Return the outlines of the areas between two lines, one for each run of known values. */
export function outlines(x, low, high) {
  const [xs, ys] = [[], []];
  for (let from = 0, i = 0; i <= x.length; i += 1) {
    if (i < x.length && low[i] !== null && high[i] !== null) continue;
    const run = Array.from({ length: i - from }, (_, j) => from + j);
    const back = [...run].reverse();
    if (run.length) {
      xs.push(...run.map((j) => x[j]), ...back.map((j) => x[j]), null);
      ys.push(...run.map((j) => high[j]), ...back.map((j) => low[j]), null);
    }
    from = i + 1;
  }
  return { x: xs, y: ys };
}
