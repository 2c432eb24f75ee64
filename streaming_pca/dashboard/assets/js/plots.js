// Contents of the figures of a stream.

import { angle, count, degrees, exact, isNumber, many, number, share } from "./format.js";
import { plain } from "./figures.js";

const MOST_ARROWS = 15;
const ALL_ERRORS = 150;
const col = (title, cell, numeric = true) => ({ title, cell, number: numeric });

/** Scree plot: variances of the last release, or weights of a tensor, with standard errors. */
export function scree({ history, release }, colours) {
  const weights = release?.weights ?? null;
  const at = (history?.batch.length ?? 0) - 1;
  const values = weights ?? history?.explained_variance[at] ?? [];
  if (!values.length) return { empty: "No release yet: variances appear with the first one." };
  const errors = weights ? null : history.explained_variance_error[at];
  const total = weights ? null : history.total_variance[at];
  const what = weights ? "weight" : "variance";
  const x = values.map((_, i) => i + 1);
  const parts = values.map((v) => (isNumber(total) && total > 0 ? v / total : null));
  return {
    summary: `${many(values.length, "component")}, by ${what}: ${values.slice(0, 5).map((v, i) => `${number(v)}${errors ? ` plus or minus ${number(errors[i], 2)}` : ""}`).join("; ")}.`,
    traces: [{
      type: "bar", x, y: values, marker: { color: colours.blue, line: { width: 0 } }, width: 0.6,
      error_y: errors ? { type: "data", array: errors, color: colours.ink, thickness: 1.5, width: 6 } : undefined,
      text: parts.map((p) => (p === null ? "" : share(p, 2))), textposition: "inside", insidetextanchor: "start",
      textangle: 0, insidetextfont: { color: colours.card },
      hovertemplate: `component %{x}<br>${what} %{y:.4g}<extra></extra>`,
    }],
    layout: {
      xaxis: { title: { text: "Component" }, tickmode: "linear", dtick: Math.max(1, Math.ceil(values.length / 12)), showgrid: false },
      yaxis: { title: { text: weights ? "Weight" : "Variance" }, rangemode: "tozero" },
      showlegend: false,
    },
    columns: [
      col("Component", (i) => count(i + 1)),
      col(weights ? "Weight" : "Variance", (i) => number(values[i], 4)),
      ...(weights ? [] : [
        col("Standard error", (i) => (errors ? `± ${number(errors[i], 2)}` : "unknown")),
        col("Share of the total", (i) => share(parts[i])),
      ]),
    ],
    rows: () => values.map((_, i) => i),
  };
}

const nameOf = (release, feature) => release.feature_names?.[feature] ?? `feature ${feature}`;

/** Format a loading for a cell; without a sign if it rounds to 0. */
const short = (value) => value.toFixed(2).replace(/^-(?=0\.00$)/, "").replace("-", "−");

/** Axis of batches: whole numbers only. */
const batchAxis = (batches) => ({ title: { text: "Batch" }, tickformat: ",d", ...(batches.at(-1) - batches[0] < 10 ? { dtick: 1 } : {}) });

function strongest(release, most, components = release.components) {
  const norms = Array.from({ length: release.dim }, (_, f) => Math.hypot(...components.map((c) => c[f])));
  return norms.map((norm, f) => [norm, f]).sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, most).map(([, f]) => f);
}

/** Order features by the record's fields, so that features of one field are adjacent. */
function together(features, fields) {
  const order = new Map();
  features.forEach((f) => { if (!order.has(fields[f])) order.set(fields[f], order.size); });
  return [...features].sort((a, b) => order.get(fields[a]) - order.get(fields[b]) || a - b);
}

/** Heat map of the features with the largest loadings. */
export function loadings({ release, most, fields }, colours) {
  if (!release) return { empty: "No release yet: loadings appear with the first one." };
  const grouped = fields?.length === release.dim;
  const features = grouped ? together(strongest(release, most), fields) : strongest(release, most);
  const ends = grouped ? features.map((f, i) => (i && fields[f] !== fields[features[i - 1]] ? i - 0.5 : null)).filter((end) => end !== null) : [];
  const components = release.components.map((_, i) => i);
  const z = features.map((f) => release.components.map((c) => c[f]));
  const largest = Math.max(...z.flat().map(Math.abs), 1e-12);
  const wide = components.length <= 8;
  return {
    size: features.length,
    summary: `Loadings of ${many(features.length, "feature")} of ${count(release.dim)} on ${many(components.length, "component")}. The largest: ${features.slice(0, 3).map((f) => nameOf(release, f)).join(", ")}.`,
    traces: [{
      type: "heatmap", z, x: components.map((i) => i + 1), y: features.map((_, i) => i),
      zmin: -largest, zmax: largest, xgap: 2, ygap: 1,
      colorscale: [[0, colours["heat-low"]], [0.5, colours["heat-mid"]], [1, colours["heat-high"]]],
      colorbar: { thickness: 10, outlinewidth: 0, title: { text: "Loading", side: "right" }, len: 1 },
      customdata: features.map((f) => components.map(() => plain(nameOf(release, f), 60))),
      text: wide && features.length <= 30 ? z.map((row) => row.map(short)) : undefined,
      texttemplate: wide && features.length <= 30 ? "%{text}" : undefined,
      hovertemplate: "%{customdata}<br>component %{x}: %{z:.3f}<extra></extra>",
    }],
    layout: {
      margin: { l: 40, r: 8, t: 8, b: 48 },
      // A line between two fields if one of them has several features.
      shapes: ends.length < features.length - 1 ? ends.map((y) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: colours.faint, width: 2 } })) : [],
      xaxis: { title: { text: "Component" }, tickmode: "linear", dtick: Math.max(1, Math.ceil(components.length / 16)), showgrid: false, zeroline: false },
      yaxis: { autorange: "reversed", tickmode: "array", tickvals: features.map((_, i) => i), ticktext: features.map((f) => plain(nameOf(release, f), 20)), showgrid: false, zeroline: false },
    },
    columns: [
      col("Feature", (f) => nameOf(release, f), false),
      ...components.map((i) => col(`Component ${i + 1}`, (f) => number(release.components[i][f]))),
    ],
    rows: () => features,
  };
}

/** Biplot of the two leading components: features as arrows; records are never shown. */
export function biplot({ release }, colours) {
  if (!release) return { empty: "No release yet: the biplot appears with the first one." };
  if (release.rank < 2) return { empty: "A biplot needs two components, and this stream has one." };
  const [first, second] = release.components;
  const features = strongest(release, MOST_ARROWS, [first, second]);
  const limit = 1.4 * Math.max(...features.map((f) => Math.max(Math.abs(first[f]), Math.abs(second[f]))), 1e-12);
  const arrow = (f) => ({
    x: first[f], y: second[f], ax: 0, ay: 0, xref: "x", yref: "y", axref: "x", ayref: "y", text: "",
    showarrow: true, arrowhead: 2, arrowsize: 1.2, arrowwidth: 1.5, arrowcolor: colours.blue,
  });
  // Only the longest arrows show their names, or names would overlap; others show theirs on hover.
  const length = (f) => Math.hypot(first[f], second[f]);
  const named = (f, i) => i < 6 && length(f) > 0.2 * length(features[0]);
  const side = (f) => (second[f] >= 0 ? "top center" : "bottom center");
  return {
    summary: `Arrows of ${many(features.length, "feature")} in the plane of components 1 and 2. The longest: ${features.slice(0, 3).map((f) => nameOf(release, f)).join(", ")}.`,
    traces: [{
      type: "scatter", mode: "markers+text", x: features.map((f) => first[f]), y: features.map((f) => second[f]),
      marker: { color: colours.blue, size: 5 }, text: features.map((f, i) => (named(f, i) ? plain(nameOf(release, f), 16) : "")),
      textposition: features.map(side), cliponaxis: false, customdata: features.map((f) => plain(nameOf(release, f), 60)),
      hovertemplate: "%{customdata}<br>component 1: %{x:.3f}<br>component 2: %{y:.3f}<extra></extra>",
    }],
    layout: {
      annotations: features.map(arrow), showlegend: false,
      xaxis: { title: { text: "Loading on component 1" }, range: [-limit, limit], zerolinecolor: colours.faint },
      yaxis: { title: { text: "Loading on component 2" }, range: [-limit, limit], zerolinecolor: colours.faint },
    },
    columns: [col("Feature", (f) => nameOf(release, f), false), col("Component 1", (f) => number(first[f])), col("Component 2", (f) => number(second[f]))],
    rows: () => features,
  };
}

/** Principal angles between releases over time, with the bound that noise alone explains. */
export function angles({ history }, colours) {
  const held = history?.angles.map((a, i) => [a, i]).filter(([a]) => a?.length) ?? [];
  if (!held.length) return { empty: "Angles appear with the second release: each is measured to the previous release." };
  const x = held.map(([, i]) => history.batch[i]);
  const largest = held.map(([a]) => degrees(a[0]));
  const others = Math.min(Math.max(...held.map(([a]) => a.length)), 4);
  const bound = held.map(([, i]) => degrees(history.noise_bound[i]));
  const few = held.length < 60;
  const recent = held.at(-1);
  const traces = [];
  for (let j = others - 1; j > 0; j -= 1) {
    traces.push({ type: "scatter", mode: "lines", x, y: held.map(([a]) => degrees(a[j])), name: j === 1 ? "Smaller angles" : "", showlegend: j === 1, line: { color: colours.faint, width: 1 }, hoverinfo: "skip" });
  }
  traces.push({ type: "scatter", mode: few ? "lines+markers" : "lines", x, y: largest, name: "Largest angle", line: { color: colours.blue, width: 2 }, hovertemplate: "batch %{x}<br>largest angle %{y:.2f}°<extra></extra>" });
  if (bound.some(isNumber)) {
    traces.push({ type: "scatter", mode: "lines", x, y: bound, name: "Noise alone (90%)", line: { color: colours.orange, width: 2, dash: "dash" }, hovertemplate: "batch %{x}<br>noise alone ≤ %{y:.2f}°<extra></extra>" });
  }
  return {
    summary: `Largest angle between the last two releases: ${angle(recent[0][0])}; noise alone explains up to ${angle(history.noise_bound[recent[1]])}. ${many(held.length, "angle")} shown.`,
    traces,
    layout: { xaxis: batchAxis(x), yaxis: { title: { text: "Angle, degrees" }, rangemode: "tozero" }, showlegend: true, margin: { l: 56, r: 16, t: 36, b: 48 } },
    columns: [
      col("Batch", ([, i]) => count(history.batch[i])),
      col("Released", ([, i]) => exact(history.created[i])),
      col("Angles to the previous release", ([a]) => a.map(angle).join(", ")),
      col("Noise alone, at most", ([, i]) => angle(history.noise_bound[i])),
    ],
    rows: () => held,
  };
}

/** Null and clipped shares of each batch, if diagnostics publish them. */
export function shares({ history }, colours) {
  const kinds = [["null_share", "Null", colours.purple, "circle"], ["clipped_share", "Clipped", colours.blue, "diamond"]];
  const at = (history?.batch ?? []).map((_, i) => i).filter((i) => kinds.some(([key]) => isNumber(history[key][i])));
  if (!at.length) {
    return { empty: "Diagnostics are off for this stream. With stream.diagnostics_share, a small part of the budget publishes how many records were null or clipped." };
  }
  const few = at.length <= ALL_ERRORS;
  const x = at.map((i) => history.batch[i]);
  const percent = (values) => at.map((i) => (isNumber(values[i]) ? 100 * values[i] : null));
  const traces = kinds.map(([key, name, color, symbol]) => ({
    type: "scatter", mode: "markers", x, y: percent(history[key]), name, marker: { color, symbol, size: few ? 7 : 4 },
    error_y: { type: "data", array: percent(history[`${key}_error`]), color, thickness: few ? 1.5 : 0.6, width: few ? 4 : 0 },
    hovertemplate: `batch %{x}<br>${name.toLowerCase()} %{y:.2f}% ± %{error_y.array:.2f}<extra></extra>`,
  }));
  const end = at.at(-1);
  const cell = (key) => (i) => `${share(history[key][i])} ± ${share(history[`${key}_error`][i], 2)}`;
  return {
    summary: `Last batch: null ${cell("null_share")(end)}, clipped ${cell("clipped_share")(end)}, with noise. ${many(at.length, "batch", "batches")} shown.`,
    traces,
    layout: { xaxis: batchAxis(x), yaxis: { title: { text: "Share of records" }, ticksuffix: "%", rangemode: "tozero" }, showlegend: true, margin: { l: 56, r: 16, t: 36, b: 48 } },
    columns: [col("Batch", (i) => count(history.batch[i])), col("Null", cell("null_share")), col("Clipped", cell("clipped_share"))],
    rows: () => at,
  };
}
