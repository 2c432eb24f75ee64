// Contents of the figures of a stream's last release.

import { atMost, count, isNumber, many, measured, number, share } from "../js/format.js";
import { placeLabels, shortenAll } from "./labels.js";
import { plain } from "./figure.js";

const MOST_ARROWS = 15;
/** Standard errors above 0 that distinguish a variance from noise. */
const CLEAR = 2;
const RIGHT = Math.PI / 2 - 1e-9;
const col = (title, cell, numeric = true) => ({ title, cell, number: numeric });

/** Scree plot: variances of the last release and their rest, or weights of a tensor. */
export function scree({ release }, colours, { width, em }) {
  const weights = release.weights ?? null;
  const what = weights ? "weight" : "variance";
  const errors = weights ? null : release.explained_variance_error;
  const bars = (weights ?? release.explained_variance).map((value, i) => ({ name: String(i + 1), value, error: errors?.[i] ?? null }));
  const sum = bars.reduce((total, bar) => total + bar.value, 0);
  // A total that may be noise says nothing about the rest.
  const known = !weights && isNumber(release.total_variance) && release.total_variance > CLEAR * (release.total_variance_error ?? 0);
  const whole = known ? Math.max(release.total_variance, sum) : null;
  const others = release.dim - release.rank;
  if (known && others) {
    // At most the sum of all errors, however they depend on each other.
    const error = errors && isNumber(release.total_variance_error) ? errors.reduce((a, b) => a + b, release.total_variance_error) : null;
    bars.push({ name: "rest", value: Math.max(release.total_variance - sum, 0), error, rest: true });
  }
  for (const bar of bars) {
    bar.lost = !bar.rest && bar.error !== null && bar.value <= CLEAR * bar.error;
    bar.text = measured(bar.value, bar.error);
  }
  const lost = bars.filter((bar) => bar.lost).map((bar) => bar.name);
  const slot = (width - 72) / bars.length / em;
  const percent = whole && slot > 3;
  const every = Math.max(1, Math.ceil(2.2 / slot));
  const marked = bars.map((bar, i) => i).filter((i) => bars[i].rest || (i % every === 0 && (!bars.at(-1).rest || (bars.length - 1 - i) * slot >= 2.2)));
  const rest = bars.find((bar) => bar.rest);
  return {
    summary: `${many(release.rank, "component")}, by ${what}: ${bars.slice(0, Math.min(release.rank, 5)).map((bar) => bar.text).join("; ")}.${rest ? ` The rest: ${rest.text}.` : ""}`,
    note: [
      rest && `Rest: ${many(others, "direction")}, on average ${measured(rest.value / others, rest.error === null ? null : rest.error / others)} each.`,
      !weights && others && !rest && "The total variance is unknown or may be noise, so there is no bar for the rest.",
      lost.length && "Pale: may be noise, at most two standard errors.",
    ].filter(Boolean).join(" "),
    traces: [{
      type: "bar", x: bars.map((_, i) => i), y: bars.map((bar) => bar.value), width: 0.65,
      marker: { color: bars.map((bar) => (bar.rest || bar.lost ? colours.line : colours.blue)), line: { color: bars.map((bar) => (bar.rest ? colours.faint : colours.blue)), width: 1 } },
      error_y: { type: "data", array: bars.map((bar) => bar.error), color: colours.ink, thickness: 1.5, width: Math.min(6, slot * em * 0.2) },
      text: bars.map((bar) => `${bar.rest ? "rest" : `component ${bar.name}`}<br>${what} ${bar.text}`), textposition: "none", hovertemplate: "%{text}<extra></extra>",
    }],
    layout: {
      xaxis: {
        title: { text: percent ? "Component, share of the total" : "Component" }, showgrid: false, tickmode: "array", tickvals: marked, tickangle: 0,
        ticktext: marked.map((i) => (percent ? `${bars[i].name}<br>${share(Math.max(bars[i].value, 0) / whole, 2)}` : bars[i].name)),
      },
      yaxis: { title: { text: weights ? "Weight" : "Variance (units²)" }, rangemode: "tozero" },
    },
    columns: [
      col("Component", (bar) => (bar.rest ? `Rest: ${many(others, "direction")}` : bar.name), false),
      col(weights ? "Weight" : "Variance", (bar) => (bar.error === null ? number(bar.value) : bar.text.split(" ± ")[0])),
      ...(weights ? [] : [
        col("Standard error", (bar) => (bar.error === null ? "unknown" : `${bar.rest ? "≤" : "±"} ${number(bar.error, 2)}`)),
        col("Share of the total", (bar) => share(whole ? Math.max(bar.value, 0) / whole : null, 2)),
      ]),
    ],
    rows: () => bars,
  };
}

const nameOf = (release, feature) => release.feature_names?.[feature] ?? `feature ${feature}`;

/** Describe how far noise can turn the components. */
function doubt({ angle_bound: bound }, resolved) {
  if (!isNumber(bound)) return "How far noise turns the components is not known.";
  if (bound >= RIGHT) return `Noise alone could have produced these components${resolved ? `, but not the first${resolved > 1 ? ` ${resolved}` : ""}` : ""}.`;
  return `Noise turns the components by at most ${atMost(bound)} (95%).`;
}

/** Format a loading; with one digit if noise can change the second, without a sign if it rounds to 0. */
function loading(value, bound) {
  const text = value.toFixed(isNumber(bound) && Math.sin(bound) < 0.05 ? 2 : 1);
  return text.replace(/^-(?=0\.0+$)/, "").replace("-", "−");
}

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
export function loadings({ release, most, fields, resolved }, colours, { width, em, measure, rows = Infinity }) {
  const grouped = fields?.length === release.dim;
  const shown = Math.min(most, rows);
  const features = grouped ? together(strongest(release, shown), fields) : strongest(release, shown);
  const ends = grouped ? features.map((f, i) => (i && fields[f] !== fields[features[i - 1]] ? i - 0.5 : null)).filter((end) => end !== null) : [];
  const components = release.components.map((_, i) => i);
  const z = features.map((f) => release.components.map((c) => c[f]));
  const largest = Math.max(...z.flat().map(Math.abs), 1e-12);
  // Names take a third of the width at most, and the cells the rest.
  const names = shortenAll(features.map((f) => nameOf(release, f)), features, Math.max(6, Math.floor(width / 3 / (0.58 * em))));
  const left = Math.ceil(Math.max(...names.map(measure))) + 12;
  const cell = (width - left - 12) / components.length;
  const written = cell > 3.2 * em && features.length <= 50;
  return {
    height: Math.max(19, 4 + 1.4 * features.length),
    summary: `Loadings of ${many(features.length, "feature")} of ${count(release.dim)} on ${many(components.length, "component")}. The largest: ${features.slice(0, 3).map((f) => nameOf(release, f)).join(", ")}.`,
    note: doubt(release, resolved),
    traces: [{
      type: "heatmap", z, x: components.map((i) => i + 1), y: features.map((_, i) => i),
      zmin: -largest, zmax: largest, xgap: 2, ygap: 1, showscale: !written,
      colorscale: [[0, colours["heat-low"]], [0.5, colours["heat-mid"]], [1, colours["heat-high"]]],
      colorbar: { thickness: 10, outlinewidth: 0, title: { text: "Loading", side: "right", font: { size: em } }, len: 1 },
      customdata: features.map((f) => components.map((i) => `${plain(nameOf(release, f))}<br>component ${i + 1}: ${loading(release.components[i][f], release.angle_bound)}`)),
      text: written ? z.map((row) => row.map((value) => loading(value, release.angle_bound))) : undefined,
      texttemplate: written ? "%{text}" : undefined,
      hovertemplate: "%{customdata}<extra></extra>",
    }],
    layout: {
      margin: { l: left, r: 8, t: 8, b: 44 },
      // A line between two fields if one of them has several features.
      shapes: ends.length < features.length - 1 ? ends.map((y) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: colours.faint, width: 2 } })) : [],
      xaxis: { title: { text: "Component" }, tickmode: "linear", dtick: Math.max(1, Math.ceil((2.2 * em) / cell)), showgrid: false, zeroline: false },
      yaxis: { autorange: "reversed", automargin: false, tickmode: "array", tickvals: features.map((_, i) => i), ticktext: names.map((name) => plain(name)), showgrid: false, zeroline: false },
    },
    columns: [
      col("Feature", (f) => nameOf(release, f), false),
      ...components.map((i) => col(`Component ${i + 1}`, (f) => number(release.components[i][f]))),
    ],
    rows: () => features,
  };
}

/** Biplot of the two leading components: features as arrows; records are never shown. */
export function biplot({ release, resolved }, colours, { width, height, em, measure }) {
  if (release.rank < 2) return { empty: "A biplot needs two components, and this stream has one." };
  const [first, second] = release.components;
  const features = strongest(release, MOST_ARROWS, [first, second]);
  const margin = { l: Math.ceil(4.8 * em) + 10, r: 10, t: 10, b: Math.ceil(3.6 * em) };
  const area = { width: width - margin.l - margin.r, height: height - margin.t - margin.b };
  // The same scale on both axes, so that angles between arrows are right; longer arrows leave room for names.
  const longest = Math.max(...features.map((f) => Math.max(Math.abs(first[f]), Math.abs(second[f]))), 1e-12);
  const pixels = Math.min(area.width, area.height) / (2.7 * longest);
  const [x, y] = [area.width / 2 / pixels, area.height / 2 / pixels];
  const tips = features.map((f) => ({ x: area.width / 2 + first[f] * pixels, y: area.height / 2 - second[f] * pixels }));
  const names = shortenAll(features.map((f) => nameOf(release, f)), features, 18);
  const places = placeLabels(
    tips.map((tip, i) => ({ ...tip, w: measure(names[i]), h: 1.15 * em })), area,
    tips.map((tip) => [{ x: area.width / 2, y: area.height / 2 }, tip]));
  const missing = places.filter((place) => !place).length;
  const note = { xref: "x", yref: "y", axref: "x", ayref: "y", text: "", showarrow: true };
  const at = (place) => ({ x: (place.x - area.width / 2) / pixels, y: (area.height / 2 - place.y) / pixels });
  const arrows = features.map((f) => ({ ...note, x: first[f], y: second[f], ax: 0, ay: 0, arrowhead: 2, arrowsize: 1.2, arrowwidth: 1.5, arrowcolor: colours.blue }));
  const labels = features.flatMap((f, i) => {
    if (!places[i]) return [];
    const { x: ax, y: ay } = at(places[i]);
    const line = { ...note, x: first[f], y: second[f], ax, ay, arrowhead: 0, arrowwidth: 1, arrowcolor: colours.faint };
    const text = { x: ax, y: ay, text: plain(names[i]), showarrow: false, xanchor: "center", yanchor: "middle", bgcolor: colours.card, borderpad: 0 };
    return places[i].line ? [line, text] : [text];
  });
  return {
    summary: `Arrows of ${many(features.length, "feature")} in the plane of components 1 and 2. The longest: ${features.slice(0, 3).map((f) => nameOf(release, f)).join(", ")}.`,
    note: [doubt(release, resolved), missing && `${many(missing, "name")} did not fit: the numbers have all.`].filter(Boolean).join(" "),
    traces: [{
      type: "scatter", mode: "markers", x: features.map((f) => first[f]), y: features.map((f) => second[f]), marker: { color: colours.blue, size: 5 },
      text: features.map((f) => `${plain(nameOf(release, f))}<br>component 1: ${loading(first[f], release.angle_bound)}<br>component 2: ${loading(second[f], release.angle_bound)}`),
      hovertemplate: "%{text}<extra></extra>",
    }],
    layout: {
      annotations: [...arrows, ...labels], margin,
      xaxis: { title: { text: "Loading on component 1", standoff: em / 2 }, range: [-x, x], zerolinecolor: colours.faint, automargin: false },
      yaxis: { title: { text: "Loading on component 2", standoff: em / 2 }, range: [-y, y], zerolinecolor: colours.faint, automargin: false },
    },
    columns: [col("Feature", (f) => nameOf(release, f), false), col("Component 1", (f) => number(first[f])), col("Component 2", (f) => number(second[f]))],
    rows: () => features,
  };
}
