// The figures of a stream's page: of its last release, and over a range of time.

import { h } from "../js/dom.js";
import { empty } from "../js/components.js";
import { figure } from "./figure.js";
import { count } from "../js/format.js";
import * as plots from "./plots.js";
import * as series from "./series.js";
import { get } from "../js/server.js";
import { RANGES } from "./timeline.js";

const FEATURES = [10, 20, 50, 100, 200];
/** Shortest time between two looks at offsets and lag. */
const TRAFFIC_MS = 10000;

/** The range chosen last, which the next stream's page starts with. */
let chosen = "all";

/** Keep a range in the address, so that a link shows the same. */
function remember(range) {
  chosen = range;
  const url = new URL(location.href);
  if (range === "all") url.searchParams.delete("range");
  else url.searchParams.set("range", range);
  history.replaceState(history.state, "", url);
}

/** Make the figures of the stream at the API's path ``path`` in ``place``. */
export function charts(place, path) {
  const asked = new URLSearchParams(location.search).get("range");
  remember(RANGES.some((r) => r.value === asked) ? asked : chosen);
  const state = { range: chosen, most: FEATURES[0], digest: undefined, unread: null, at: 0, drawn: [] };
  // Each is fetched when a figure needs it, once for each release or look.
  const held = new Map();
  const once = (name) => {
    if (!held.has(name)) {
      held.set(name, get(`${path}/${name}`).catch((error) => {
        held.delete(name);
        throw error;
      }));
    }
    return held.get(name);
  };
  const release = async () => ({ release: await once("releases/latest"), most: state.most, fields: state.fields, resolved: state.resolved });
  /** Load all numbers over time: their figures show the same span. */
  const over = async () => {
    const [traffic, history] = await Promise.all(state.digest ? [once("traffic"), once("history")] : [once("traffic")]);
    const times = series.moments([...traffic.at, ...(history?.created ?? [])]);
    return { history, traffic, span: [Math.min(...times), Math.max(...times)], range: state.range, now: Date.now() };
  };

  function last(detail) {
    const tensor = detail.kind === "tensor";
    const choice = h("select", { id: "features", on: { change: () => {
      state.most = Number(choice.value);
      heat.redraw();
    } } }, FEATURES.filter((n, i) => !i || FEATURES[i - 1] < detail.dim).map((n) => h("option", { value: n, selected: n === state.most }, count(Math.min(n, detail.dim)))));
    const control = detail.dim > FEATURES[0] ? h("div", { class: "row" }, h("label", { for: "features" }, "Largest"), choice) : null;
    const heat = figure({
      id: "loadings", title: "Loadings", control, load: release, build: plots.loadings,
      caption: "Weight of each feature in each component. The sign of a whole component means nothing.",
    });
    return [
      figure({
        id: "scree", title: tensor ? "Weights" : "Explained variance", load: release, build: plots.scree,
        caption: tensor ? "Weight of each component." : "Error bars: one standard error, of noise, clips and mean.",
      }),
      figure({
        id: "biplot", title: "Leading two components", load: release, build: plots.biplot,
        caption: "Features as arrows. Records are not shown: they are private.",
      }),
      heat,
    ];
  }

  function changes(detail) {
    return [
      detail.kind === "tensor" ? null : figure({
        id: "variances", title: "Variance over time", load: over, build: series.variances,
        caption: "Of the leading components of each release, ± one standard error.",
      }),
      figure({
        id: "angles", title: "Angles", load: over, build: series.angles,
        caption: "From each release to the previous one. An angle above the dashed line is more than noise explains (90%).",
      }),
    ];
  }

  const flow = () => [
    figure({
      id: "flow", title: "Records a second", load: over, build: series.flow,
      caption: "Processed: by the releases. Arriving: by the topic's offsets, since the dashboard started.",
    }),
    figure({
      id: "lag", title: "Lag", load: over, build: series.lag,
      caption: "Offsets not yet processed, since the dashboard started. Shade: down to the smallest.",
    }),
  ];

  const shares = () => figure({
    id: "shares", title: "Null and clipped", load: over, build: series.shares,
    caption: "Records of each batch that could not be used, or that the clip changed; with noise, ± one standard error.",
  });

  function ranges() {
    const choose = (value) => () => {
      state.range = value;
      remember(value);
      for (const drawn of state.drawn) if (drawn.timed) drawn.figure.redraw();
    };
    return h("fieldset", { class: "ranges across", "data-control": "range" }, h("legend", {}, "Over time"),
      RANGES.map(({ value, title }) => h("label", {},
        h("input", { type: "radio", name: "range", value, checked: value === state.range, on: { change: choose(value) } }), title)));
  }

  function start(detail) {
    close();
    state.fields = detail.fields;
    const [now, timed] = detail.last_release ? [last(detail), [...changes(detail), ...flow(), shares()]] : [[], flow()];
    state.drawn = [...now.map((drawn) => ({ figure: drawn })), ...timed.filter(Boolean).map((drawn) => ({ figure: drawn, timed: true }))];
    const elements = (some) => some.map((drawn) => drawn.figure.element);
    place.classList.add("figures");
    place.replaceChildren(
      ...(now.length ? elements(state.drawn.filter((drawn) => !drawn.timed)) : [h("div", { class: "across" }, state.unread ? empty(`${state.unread}.`) : empty("No release yet.", "Explained variance, loadings, angles and the other figures appear with the first release, which comes when the first batch is processed."))]),
      ranges(), ...elements(state.drawn.filter((drawn) => drawn.timed)));
  }

  function close() {
    for (const drawn of state.drawn) drawn.figure.close();
    state.drawn = [];
  }

  return {
    /**
     * Show a stream's numbers: all figures after a release, those of offsets and lag after some seconds.
     *
     * ``unread`` is a text if it is not known whether there is a release.
     */
    show(detail, unread) {
      const digest = detail.last_release?.digest ?? null;
      const fresh = digest !== state.digest || unread !== state.unread;
      if (!fresh && performance.now() - state.at < TRAFFIC_MS) return;
      state.at = performance.now();
      held.delete("traffic");
      if (!fresh) {
        for (const { figure: drawn, timed } of state.drawn) if (timed) drawn.redraw();
        return;
      }
      held.clear();
      const first = state.digest === undefined || (digest === null) !== (state.digest === null) || unread !== state.unread;
      state.digest = digest;
      state.resolved = detail.last_release?.resolved_components;
      state.unread = unread;
      if (first) start(detail);
      else for (const { figure: drawn } of state.drawn) drawn.redraw();
    },
    close,
  };
}
