// Page of one stream: numbers first, then figures, guarantee, budget, releases.

import { field, h, show } from "./dom.js";
import { charts } from "../figures/charts.js";
import { angle, atMost, count, isNumber, many, NONE, share } from "./format.js";
import * as components from "./components.js";
import { releases } from "./releases.js";
import { get, part, ROOT } from "./server.js";

/** Lines of each list that are not folded: a page of two screens has room for these. */
const FIRST = { guarantee: 3, "health.reasons": 3, "advice.remedies": 2 };

/** Show the first lines of a field as a list, and fold the others under ``more``, with ``last``. */
function folded(name, lines, list, more, last = null) {
  const rest = lines.slice(FIRST[name]);
  return h("div", { class: "stack", "data-field": name }, list(lines.slice(0, FIRST[name])),
    rest.length ? h("details", { "data-fold": name }, h("summary", {}, more(rest.length)), list(rest), last) : last);
}

/** Reasons of the health, the worst first, next to the remedies for the doubts of the last release. */
function causes({ health, advice }) {
  if (!health.reasons.length) return null;
  const helps = (lines) => h("ul", {}, lines.map((line) => h("li", {}, line)));
  const given = advice?.given.length ? h("p", { class: "small faint" }, `Already given: ${advice.given.join(", ")}.`) : null;
  return h("div", { class: "causes" },
    folded("health.reasons", health.reasons, (lines) => components.reasons(lines), (left) => many(left, "more reason")),
    advice?.remedies.length ? h("div", { class: "stack" },
      h("div", { class: "title" }, h("h2", {}, "What helps"), advice.note ? h("span", { class: "small faint" }, `Note: ${advice.note}.`) : null),
      folded("advice.remedies", advice.remedies, helps, (left) => many(left, "more change"), given)) : null);
}

export function open(main, name) {
  const path = `v1/streams/${part(name)}`;
  const top = h("div", { class: "stack" }, h("h1", {}, name));
  const numbers = h("div", { class: "card" });
  const figures = h("div", {});
  const [guaranteed, charged] = ["guarantee", "budget"].map((id) => h("section", { class: "card", "aria-labelledby": `${id}-title`, "data-part": id }));
  const list = releases(name, path);
  const state = { detail: null, shown: undefined };
  const drawn = charts(figures, path);

  function paint(detail, unread) {
    const release = detail.last_release;
    show(top,
      h("div", { class: "title" }, h("h1", {}, detail.name), h("div", {}, components.health(detail)),
        h("p", { class: "lead" }, `Estimator ${detail.estimator}; ${many(detail.rank, "component")} of ${many(detail.dim, "feature")}; reads `,
          components.link(ROOT, components.ledgerPath(detail.input), detail.input), detail.standing ? "; " : "", detail.standing ? field("standing", detail.standing, detail.standing) : "", ".")),
      causes(detail));
    show(numbers, h("h2", { class: "unseen" }, "Now"), headline(detail, release, unread));
    show(guaranteed, h("h2", { id: "guarantee-title" }, "What is guaranteed"), guarantee(detail));
    show(charged, h("div", { class: "head" }, h("h2", { id: "budget-title" }, "Privacy budget"), components.link(ROOT, components.ledgerPath(detail.input), "See the ledger", { class: "small" })), budget(detail, unread));
  }

  const rest = h("div", { class: "stack page" }, numbers, figures, h("div", { class: "trio" }, guaranteed, charged, list.use), list.element);
  rest.hidden = true;
  main.replaceChildren(h("div", { "data-stream": name, class: "stack page" }, top, rest));
  return {
    title: name,
    wants: (event) => event.stream === name || (event.kind === "ledger" && event.input === state.detail?.input),
    async refresh(signal) {
      const [detail, all] = await Promise.all([get(path, { signal }), get("v1/streams?limit=1", { signal })]);
      if (signal.aborted) return all.connection;
      state.detail = detail;
      const unread = components.unread(detail, all.connection);
      paint(detail, unread);
      rest.hidden = false;
      // The server has no releases before it has read all topics.
      const release = unread ? null : detail.last_release;
      drawn.show({ ...detail, last_release: release }, unread);
      const shown = release?.digest ?? unread;
      if (shown !== state.shown) {
        state.shown = shown;
        list.renew(signal, unread);
      }
      return all.connection;
    },
    close: drawn.close,
  };
}

function headline(detail, release, unread) {
  const batches = detail.batches;
  const bound = release?.angle_bound;
  return components.facts([
    [detail.privacy_unit === "row" ? "Messages processed" : "Records processed", field("records", detail.records, count(detail.records))],
    ["Last release", release ? components.when(release.created, "last_release.created") : h("span", { "data-empty": "" }, unread ?? "None yet"),
      release ? ["batch ", field("last_release.batch", release.batch, count(release.batch)), ", ", field("last_release.records", release.records, many(release.records, "record"))] : unread ? null : "with the first batch"],
    next(detail),
    ["Explained", release ? components.shareCell(release.explained_share) : NONE, "of the variance"],
    ["Above the noise", release && isNumber(release.resolved_components) ? field("last_release.resolved_components", release.resolved_components, `${release.resolved_components} of ${detail.rank}`) : NONE, "components"],
    ["Angle", ...(release && !isNumber(release.angle) ? [components.noAngle(release)]
      : [release ? field("last_release.angle", release.angle, angle(release.angle)) : NONE, "to the previous release"])],
    ["Error by noise", release ? field("last_release.angle_bound", bound, isNumber(bound) ? (bound >= Math.PI / 2 - 1e-9 ? "any angle" : ["≤\u00a0", atMost(bound)]) : "not known") : NONE,
      isNumber(bound) ? "with probability 0.95" : null],
    ["Batches", batches ? field("batches.committed", batches.committed, count(batches.committed)) : NONE,
      batches ? [field("batches.released", batches.released, count(batches.released)), " released", batches.abandoned ? [", ", field("batches.abandoned", batches.abandoned, count(batches.abandoned)), " abandoned"] : ""] : null],
    ["Leader", components.leaderCell(detail)],
    detail.unreadable ? ["Not releases", field("unreadable", detail.unreadable, count(detail.unreadable)), "messages"] : null,
  ], { class: "facts now" });
}

/** The batch that fills, or the offsets that wait where none does. */
function next({ budget, lag, leader, next_batch: batch, privacy_unit: unit }) {
  if (!lag) return ["Next batch", NONE];
  const waiting = [field("lag.total", lag.total, many(lag.total, "offset")), ` in ${many(Object.keys(lag.partitions).length, "partition")}`];
  if (!batch) return ["Waiting", waiting];
  return ["Next batch", [field("next_batch.waiting", batch.waiting, components.fillText(batch)), components.bar(batch.waiting / batch.planned, `${unit === "row" ? "Messages" : "Records"} that wait, of those that the batch takes`)],
    [components.fillWords(batch, budget, leader), ...(lag.total > batch.planned ? ["; ", waiting, " wait"] : [])]];
}

function guarantee(detail) {
  const list = (lines) => h("ul", { class: "guarantee" }, lines.map((line) => h("li", {}, line)));
  return [
    detail.private ? null : components.trouble("Nothing is guaranteed: this stream is not private."),
    folded("guarantee", detail.guarantee, list, () => "Epsilon, delta, and what is not covered")];
}

function budget(detail, unread) {
  const held = detail.budget;
  if (!held) return unread ? components.empty(`${unread}.`) : components.empty("The ledger is not open.", "Charges appear once the topics are created: streaming-pca topics create.");
  const alone = ["epsilon", "delta", "rho"].every((name) => held.by_stream[name] === held.by_all[name]);
  const rows = [[alone ? "Charged" : "By this stream", "by_stream"], ...(alone ? [] : [["By all jobs", "by_all"]]), ["Left", "left"], ["Cap", "cap"]];
  return [
    h("p", {}, field("budget.allows_next", held.allows_next, `${components.budgetWords(held, detail.privacy_unit)}.`)),
    components.budgetBar(held.spent_share, held.allows_next),
    h("p", { class: "small faint" }, "Of the most charged record", isNumber(held.spent_share) ? [", with ", field("budget.spent_share", held.spent_share, share(held.spent_share)), " of the cap spent"] : "", ":"),
    components.facts(rows.map(([title, key]) => [title, components.chargeFields(`budget.${key}`, held[key])]), { class: "facts charges" })];
}
