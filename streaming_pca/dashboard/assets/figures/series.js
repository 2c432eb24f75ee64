// Contents of the figures of a stream over time.

import { angle, atMost, count, degrees, exact, isNumber, many, measured, number, share } from "../js/format.js";
import { domain, joined, outlines, RANGES, rates, timeAxis } from "./timeline.js";

const MOST_LINES = 4;
/** Number of steps of a rate. */
const STEPS = 120;
/** Least number of steps, if there are as many data. */
const FEWEST = 8;
/** Number of points up to which each has a mark. */
const FEW = 60;
const col = (title, cell, numeric = true) => ({ title, cell, number: numeric });
export const moments = (texts) => (texts ?? []).map((text) => Date.parse(text));
const alpha = (hex, opacity) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${opacity})`;
const line = (color, more) => ({ type: "scatter", mode: "lines", line: { color, width: 2, ...more }, marker: { color, symbol: "circle" } });

/** Area around a line. */
function area(x, low, high, color) {
  return { type: "scatter", mode: "lines", ...outlines(x, low, high), fill: "toself", fillcolor: alpha(color, 0.22), line: { width: 0, color }, hoverinfo: "skip" };
}

/** Index of the last moment before a range begins, or of the first one. */
function lastBefore(times, begin) {
  const later = times.findIndex((time) => time >= begin);
  return Math.max(0, (later < 0 ? times.length : later) - 1);
}

/**
 * Choose what a range shows of some times: their indices from the last before the range, and the axis; or a
 * text, if the range has none of them.
 */
function choose(times, { range, now, span }, { width, em }, what) {
  const shown = domain(range, times, now, span);
  if (!shown) return { empty: `No ${what} ${RANGES.find((r) => r.value === range).words}: the latest is of ${exact(times.at(-1))}. Choose a longer range.` };
  const first = lastBefore(times, shown[0]);
  return { at: times.map((_, i) => i).slice(first), shown, axis: timeAxis(shown, width / em) };
}

/** Layout with room above the highest line, which would lie on the edge. */
function layout(axis, title, traces, more) {
  const top = traces.flatMap(({ y }) => y).reduce((most, value) => Math.max(most, value ?? 0), 0);
  return { xaxis: axis, yaxis: { title: { text: title }, rangemode: "tozero", autorangeoptions: { include: 1.06 * top }, ...more } };
}

/** Variances of the leading components of each release, with their standard errors. */
export function variances({ history, ...view }, colours, room) {
  const times = moments(history.created);
  const { at, axis, empty } = choose(times, view, room, "release");
  if (empty) return { empty };
  const x = at.map((i) => times[i]);
  const when = at.map((i) => `batch ${count(history.batch[i])}, ${exact(history.created[i])}`);
  const rank = history.explained_variance.at(-1).length;
  const shown = Array.from({ length: Math.min(rank, MOST_LINES) }, (_, j) => j);
  const value = (i, j) => measured(history.explained_variance[i][j], history.explained_variance_error[i]?.[j]);
  const hues = [colours.blue, colours.orange, colours.green, colours.purple];
  const traces = shown.flatMap((j) => {
    const [y, errors] = [at.map((i) => history.explained_variance[i][j]), at.map((i) => history.explained_variance_error[i]?.[j] ?? null)];
    const edge = (sign) => y.map((v, i) => (errors[i] === null ? null : v + sign * errors[i]));
    return [
      area(x, edge(-1), edge(1), hues[j]),
      // An area of one point has no width.
      { ...line(hues[j]), error_y: { type: "data", array: errors, color: hues[j], visible: at.length === 1 }, mode: at.length < FEW ? "lines+markers" : "lines", x, y, name: String(j + 1), text: at.map((i, n) => `${when[n]}<br>component ${j + 1}: ${value(i, j)}`), hovertemplate: "%{text}<extra></extra>" },
    ];
  });
  const end = at.at(-1);
  return {
    summary: `Variances of ${many(shown.length, "component")}, ${many(at.length, "release")} shown. The last: ${shown.map((j) => value(end, j)).join("; ")}.`,
    traces, layout: layout(axis, `Variance (units²)${rank > MOST_LINES ? `, ${MOST_LINES} of ${rank}` : ""}`, traces),
    columns: [col("Batch", (i) => count(history.batch[i])), col("Released", (i) => exact(history.created[i]), false), ...shown.map((j) => col(`Component ${j + 1}`, (i) => value(i, j)))],
    rows: () => at,
  };
}

/** Principal angles between releases, with the bound that noise alone explains. */
export function angles({ history, ...view }, colours, room) {
  const held = history.angles.map((a, i) => (a?.length ? i : -1)).filter((i) => i >= 0);
  if (!held.length) return { empty: "Angles appear with the second release: each is measured to the previous release." };
  const times = held.map((i) => Date.parse(history.created[i]));
  const { at, axis, empty } = choose(times, view, room, "angle");
  if (empty) return { empty };
  const indices = at.map((n) => held[n]);
  const x = at.map((n) => times[n]);
  const others = Math.min(Math.max(...indices.map((i) => history.angles[i].length)), MOST_LINES);
  const bound = indices.map((i) => degrees(history.noise_bound[i]));
  const text = (i) => `batch ${count(history.batch[i])}, ${exact(history.created[i])}<br>largest angle ${angle(history.angles[i][0])}<br>noise alone ≤ ${atMost(history.noise_bound[i])}`;
  const mode = at.length < 2 ? "markers" : "lines"; // a line of one point is none
  const traces = [];
  for (let j = others - 1; j > 0; j -= 1) {
    traces.push({ ...line(colours.faint, { width: 1 }), mode, x, y: indices.map((i) => degrees(history.angles[i][j])), name: j === 1 ? "Smaller" : "", hoverinfo: "skip" });
  }
  traces.push({ ...line(colours.blue), mode: at.length < FEW ? "lines+markers" : "lines", x, y: indices.map((i) => degrees(history.angles[i][0])), name: "Largest", text: indices.map(text), hovertemplate: "%{text}<extra></extra>" });
  if (bound.some(isNumber)) traces.push({ ...line(colours.orange, { dash: "dash" }), mode, x, y: bound, name: "Noise", hoverinfo: "skip" });
  const end = indices.at(-1);
  return {
    summary: `Largest angle between the last two releases: ${angle(history.angles[end][0])}; noise alone explains up to ${atMost(history.noise_bound[end])}. ${many(at.length, "angle")} shown.`,
    traces, layout: layout(axis, "Angle (degrees)", traces),
    columns: [
      col("Batch", (i) => count(history.batch[i])), col("Released", (i) => exact(history.created[i]), false),
      col("Angles to the previous release", (i) => history.angles[i].map(angle).join(", ")),
      col("Noise alone, at most", (i) => atMost(history.noise_bound[i])),
    ],
    rows: () => indices,
  };
}

/** Null and clipped shares of each batch, if diagnostics publish them. */
export function shares({ history, ...view }, colours, room) {
  const kinds = [["null_share", "Null", colours.purple, "circle"], ["clipped_share", "Clipped", colours.blue, "diamond"]];
  const known = history.batch.map((_, i) => i).filter((i) => kinds.some(([key]) => isNumber(history[key][i])));
  if (!known.length) {
    return { empty: "Diagnostics are off for this stream. With stream.diagnostics_share, a small part of the budget publishes how many records were null or clipped." };
  }
  const times = known.map((i) => Date.parse(history.created[i]));
  const { at, axis, empty } = choose(times, view, room, "batch");
  if (empty) return { empty };
  const indices = at.map((n) => known[n]);
  const few = indices.length < 2 * FEW;
  const percent = (key) => indices.map((i) => (isNumber(history[key][i]) ? 100 * history[key][i] : null));
  const cell = (key) => (i) => (isNumber(history[key][i]) ? measured(100 * history[key][i], 100 * history[`${key}_error`][i], "%") : share(null));
  const traces = kinds.map(([key, name, color, symbol]) => ({
    type: "scatter", mode: "markers", x: at.map((n) => times[n]), y: percent(key), name, marker: { color, symbol, size: few ? 7 : 4 },
    error_y: { type: "data", array: percent(`${key}_error`), color, thickness: few ? 1.5 : 0.6, width: few ? 4 : 0 },
    text: indices.map((i) => `batch ${count(history.batch[i])}, ${exact(history.created[i])}<br>${name.toLowerCase()} ${cell(key)(i)}`), hovertemplate: "%{text}<extra></extra>",
  }));
  const end = indices.at(-1);
  return {
    summary: `Last batch: null ${cell("null_share")(end)}, clipped ${cell("clipped_share")(end)}, with noise. ${many(indices.length, "batch", "batches")} shown.`,
    traces, layout: layout(axis, "Share of records", traces, { ticksuffix: "%" }),
    columns: [col("Batch", (i) => count(history.batch[i])), col("Released", (i) => exact(history.created[i]), false), col("Null", cell("null_share")), col("Clipped", cell("clipped_share"))],
    rows: () => indices,
  };
}

/** Records a second: processed, by the releases, and arriving, by the offsets. */
export function flow({ history, traffic, ...view }, colours, room) {
  const kinds = [
    ["Arriving", moments(traffic.at), traffic.offsets, colours.orange],
    ["Processed", moments(history?.created), history?.records ?? [], colours.blue],
  ];
  const all = kinds.flatMap(([, times]) => times).sort((a, b) => a - b);
  if (!all.length) return { empty: "No rate yet: the first appears some seconds after the broker's first answer." };
  const { shown, axis, empty } = choose(all, view, room, "record or release");
  if (empty) return { empty };
  const drawn = kinds.map(([name, times, totals, color]) => {
    const first = lastBefore(times, shown[0]);
    // Of a long range with few data each interval is a part of these.
    const least = Math.min((shown[1] - shown[0]) / STEPS, (times.at(-1) - times[first]) / FEWEST);
    return { name, color, ...rates(times.slice(first), totals.slice(first), least) };
  }).filter(({ y }) => y.some(isNumber));
  if (!drawn.length) return { empty: "No rate yet: it needs two releases, or two answers of the broker ten seconds apart." };
  const rate = (value) => number(value, 3);
  return {
    summary: drawn.map(({ name, y }) => `${name}: ${rate(y.findLast(isNumber))} a second at last`).join("; ") + ".",
    traces: drawn.map(({ name, color, x, y }) => ({
      ...line(color, { shape: "vh" }), mode: x.length < FEW ? "lines+markers" : "lines", x, y, name, text: x.map((time, i) => `until ${exact(time)}<br>${name.toLowerCase()}: ${rate(y[i])} a second`), hovertemplate: "%{text}<extra></extra>",
    })),
    layout: layout(axis, "Records a second", drawn),
    columns: [col("Until", ([time]) => exact(time), false), col("Records", ([, , name]) => name, false), col("A second", ([, value]) => rate(value))],
    // A step's first point is its beginning.
    rows: () => drawn.flatMap(({ name, x, y }) => x.map((time, i) => [time, y[i], name]).filter(([, value], i) => value === null || isNumber(y[i - 1]))).sort((a, b) => a[0] - b[0]),
  };
}

/** Lag: offsets that wait to be processed. */
export function lag({ traffic, ...view }, colours, room) {
  const times = moments(traffic.at);
  if (!times.length) return { empty: "No lag yet: it needs the stream's topics and an answer of the broker. The dashboard measures it from its start." };
  const { at, shown, axis, empty } = choose(times, view, room, "lag");
  if (empty) return { empty };
  const of = (column) => at.map((i) => traffic[column][i]);
  const points = joined(at.map((i) => times[i]), of("lag_low"), of("lag_high"), (shown[1] - shown[0]) / STEPS);
  const [x, low, high] = [0, 1, 2].map((part) => points.map((point) => point[part]));
  const known = points.filter(([, least]) => least !== null);
  const between = ([, least, most]) => (least === most ? count(least) : `${count(least)} to ${count(most)}`);
  return {
    summary: `Lag: ${between(known.at(-1))} offsets at last; at most ${count(Math.max(...known.map(([, , most]) => most)))} in this range.`,
    traces: [
      area(x, low, high, colours.blue),
      { ...line(colours.blue), mode: known.length < 3 ? "lines+markers" : "lines", x, y: high, name: "Largest of each interval", text: points.map((point) => `until ${exact(point[0])}<br>${between(point)} offsets`), hovertemplate: "%{text}<extra></extra>" },
    ],
    layout: layout(axis, "Waiting offsets", [{ y: high }]),
    columns: [col("Until", ([time]) => exact(time), false), col("Smallest", ([, least]) => count(least)), col("Largest", ([, , most]) => count(most))],
    rows: () => known,
  };
}
