// Page of one stream: numbers first, then figures, guarantee, budget, releases.

import { field, h, show } from "./dom.js";
import { figure } from "./figures.js";
import { angle, count, decimal, isNumber, many, NONE, number, share } from "./format.js";
import * as components from "./components.js";
import * as plots from "./plots.js";
import { releases, snippets } from "./releases.js";
import { get, part, ROOT } from "./server.js";

const FEATURES = [10, 20, 50, 100, 200];

/** Remedies for the doubts of the last release, one a line. */
function helps(advice) {
  if (!advice?.remedies.length) return null;
  return [
    h("h3", {}, "What helps"),
    h("ul", { "data-field": "advice.remedies" }, advice.remedies.map((line) => h("li", {}, line))),
    advice.note ? h("p", { class: "note small" }, `Note: ${advice.note}.`) : null,
    advice.given.length ? h("p", { class: "note small" }, `Already given: ${advice.given.join(", ")}.`) : null,
  ];
}

export function open(main, name) {
  const path = `v1/streams/${part(name)}`;
  const top = h("div", { class: "stack" }, h("h1", {}, name));
  const numbers = h("div", { class: "card" });
  const figures = h("div", {});
  const below = h("div", { class: "columns" });
  const list = releases(name, path);
  const state = { detail: null, digest: undefined, history: null, release: null, most: 20, drawn: [] };

  // Both are fetched when a figure needs them, once per release.
  const history = () => (state.history ??= get(`${path}/history`));
  const latest = () => (state.release ??= state.detail.last_release ? get(`${path}/releases/latest`) : Promise.resolve(null));
  const forget = () => {
    state.history = null;
    state.release = null;
  };
  const failing = (load) => async () => {
    try {
      return await load();
    } catch (error) {
      forget();
      throw error;
    }
  };

  function startFigures(detail) {
    const tensor = detail.kind === "tensor";
    const choice = h("select", { id: "features", on: { change: () => {
      state.most = Number(choice.value);
      heat.redraw();
    } } }, FEATURES.filter((n, i) => !i || FEATURES[i - 1] < detail.dim).map((n) => h("option", { value: n, selected: n === state.most }, count(Math.min(n, detail.dim)))));
    const control = detail.dim > FEATURES[0] ? h("div", { class: "row" }, h("label", { for: "features" }, "Features with the largest loadings"), choice) : null;
    const heat = figure({
      id: "loadings", title: "Loadings", tall: true, control,
      caption: "Weight of each feature in each component, with its sign. The sign of a whole component means nothing.",
      load: failing(async () => ({ release: await latest(), most: state.most, fields: detail.fields })), build: plots.loadings,
      height: ({ size }) => `${Math.max(34, 6 + 1.4 * size)}rem`,
    });
    state.drawn = [
      figure({
        id: "scree", title: tensor ? "Weights" : "Explained variance",
        caption: tensor ? "Weight of each component of the last release." : "Variance of each component of the last release. Error bars: one standard error, of the noise and of what clips cut off. Percentages: share of the total variance.",
        load: failing(async () => ({ history: await history(), release: tensor ? await latest() : null })), build: plots.scree,
      }),
      figure({
        id: "angles", title: "Angles between releases",
        caption: "Principal angles between each release and the previous one. A change above the dashed line exceeds what noise explains, with probability 0.9: the line is the sum of two bounds, each holding with probability 0.95.",
        load: failing(async () => ({ history: await history() })), build: plots.angles,
      }),
      figure({
        id: "shares", title: "Null and clipped records",
        caption: "Share of each batch's records that could not be used, and that the clip changed. Noise is added; error bars: one standard error.",
        load: failing(async () => ({ history: await history() })), build: plots.shares,
      }),
      heat,
      figure({
        id: "biplot", title: "Leading two components", tall: true,
        caption: "Features as arrows. Records are not shown: they are private.",
        load: failing(async () => ({ release: await latest() })), build: plots.biplot,
      }),
    ];
    figures.replaceChildren(...state.drawn.map((f) => f.element));
    figures.classList.add("figures");
  }

  /** Figures, or a single message before the first release. */
  function renewFigures(detail) {
    if (!detail.last_release) {
      for (const drawn of state.drawn) drawn.close();
      state.drawn = [];
      figures.classList.remove("figures");
      show(figures, components.empty("No release yet.", "Explained variance, loadings, angles and the other figures appear with the first release, which comes when the first batch is learnt."));
    } else if (state.drawn.length) {
      for (const drawn of state.drawn) drawn.redraw();
    } else {
      startFigures(detail);
    }
  }

  function paint(detail) {
    const release = detail.last_release;
    show(top,
      h("nav", { class: "small", "aria-label": "Place" }, components.link(ROOT, "", "Streams"), " / ", detail.name),
      h("div", { class: "title" }, h("h1", {}, detail.name), h("div", {}, components.health(detail.health, false))),
      detail.health.reasons.length ? h("ul", { class: "reasons", "data-field": "health.reasons" }, detail.health.reasons.map((r) => h("li", {}, r))) : null,
      detail.problem && !detail.health.reasons.includes(detail.problem) ? components.trouble(detail.problem) : null,
      h("p", { class: "lead" }, `Estimator ${detail.estimator}; ${detail.rank} components of ${count(detail.dim)} features; reads `,
        components.link(ROOT, components.ledgerPath(detail.input), detail.input), detail.standing ? "; " : "", detail.standing ? field("standing", detail.standing, detail.standing) : "", "."));
    show(numbers, h("h2", {}, "Now"), headline(detail, release),
      release?.doubts?.length ? h("div", {}, h("h3", {}, "Reasons not to rely on the last release"), h("ul", { "data-field": "last_release.doubts" }, (detail.advice?.reasons ?? release.doubts).map((d) => h("li", {}, d))), helps(detail.advice)) : null);
    show(below, guarantee(detail), budget(detail));
  }

  const rest = h("div", { class: "stack page" }, numbers, figures, below, list.element, snippets(name));
  rest.hidden = true;
  main.replaceChildren(h("div", { "data-stream": name, class: "stack page" }, top, rest));
  return {
    title: name,
    wants: (event) => event.stream === name || (event.kind === "ledger" && event.input === state.detail?.input),
    async refresh(signal) {
      const [detail, all] = await Promise.all([get(path, { signal }), get("v1/streams?limit=1", { signal })]);
      if (signal.aborted) return all.connection;
      state.detail = detail;
      paint(detail);
      rest.hidden = false;
      const digest = detail.last_release?.digest ?? null;
      if (digest !== state.digest) {
        state.digest = digest;
        forget();
        renewFigures(detail);
        list.renew(signal);
      }
      return all.connection;
    },
    close() {
      for (const drawn of state.drawn) drawn.close();
    },
  };
}

function headline(detail, release) {
  const batches = detail.batches;
  const bound = release?.angle_bound;
  return components.facts([
    ["Records learnt", field("records", detail.records, count(detail.records))],
    ["Last release", release ? components.when(release.created, "last_release.created") : h("span", { "data-empty": "" }, "None yet"),
      release ? ["batch ", field("last_release.batch", release.batch, count(release.batch)), ", ", field("last_release.records", release.records, many(release.records, "record"))] : "It comes with the first batch that is learnt."],
    ["Explained share", release ? components.shareCell(release.explained_share) : NONE, "of the total variance"],
    ["Components above the noise", release && isNumber(release.resolved_components) ? field("last_release.resolved_components", release.resolved_components, `${release.resolved_components} of ${detail.rank}`) : NONE],
    ["Angle to the previous release", release ? field("last_release.angle", release.angle, angle(release.angle)) : NONE],
    ["Error by noise, at most", release ? field("last_release.angle_bound", bound, isNumber(bound) ? (bound >= Math.PI / 2 - 1e-9 ? "any angle" : angle(bound)) : "not known") : NONE,
      isNumber(bound) ? "angle to the same sums without noise, 95%" : null],
    ["Batches", batches ? field("batches.committed", batches.committed, count(batches.committed)) : NONE,
      batches ? [field("batches.released", batches.released, count(batches.released)), " released, ", field("batches.abandoned", batches.abandoned, count(batches.abandoned)), " given up"] : null],
    ["Leader", h("span", { class: "small-fact" }, components.leaderCell(detail.leader))],
    ["Waiting records", detail.lag ? field("lag.total", detail.lag.total, count(detail.lag.total)) : NONE, detail.lag ? `offsets, over ${many(Object.keys(detail.lag.partitions).length, "partition")}` : null],
    detail.unreadable ? ["Messages that are not releases", field("unreadable", detail.unreadable, count(detail.unreadable))] : null,
  ]);
}

function guarantee(detail) {
  const lines = detail.guarantee;
  return components.section("guarantee", "What is guaranteed",
    detail.private
      ? components.facts([
        ["Epsilon", field("epsilon", detail.epsilon, number(decimal(detail.epsilon)))],
        ["Delta", field("delta", detail.delta, number(decimal(detail.delta)))],
        ["For each", field("privacy_unit", detail.privacy_unit, detail.privacy_unit), detail.contributions_per_user ? `in at most ${many(detail.contributions_per_user, "batch", "batches")}` : null],
      ])
      : components.trouble("Nothing is guaranteed: this stream is not private."),
    lines.length ? h("ul", { class: "guarantee", "data-field": "guarantee" }, lines.map((line) => h("li", {}, line))) : null);
}

function budget(detail) {
  const held = detail.budget;
  if (!held) return components.section("budget", "Privacy budget", components.empty("The ledger is not open.", "Charges appear once the topics are created: streaming-pca topics create."));
  return h("section", { class: "card", "aria-labelledby": "budget-title", "data-plot": "budget", "data-key": "budget" },
    h("h2", { id: "budget-title" }, "Privacy budget"),
    components.budgetBar(held),
    h("p", {}, isNumber(held.spent_share) ? [field("budget.spent_share", held.spent_share, share(held.spent_share)), " of the cap is charged to the record with the largest charge. What is charged does not come back."] : "Charges of the record with the largest charge."),
    components.table(`Charges by the rule “${held.filter}”`, [
      { title: "Of a record", cell: ([title]) => title },
      { title: "Charge", number: true, cell: ([, key]) => components.chargeFields(`budget.${key}`, held[key]) },
    ], [["Charged by this stream", "by_stream"], ["Charged by all jobs", "by_all"], ["Left", "left"], ["Cap", "cap"]], { hidden: false }),
    h("p", {}, components.link(ROOT, components.ledgerPath(detail.input), "See the ledger")));
}
