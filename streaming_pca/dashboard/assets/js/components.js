// Components of several pages: health, budgets, times, tables, tabs.

import { field, h, svg } from "./dom.js";
import { ago, angle, atMost, charge, chargeParts, count, exact, isNumber, largest, NONE, number, share, span, spentParts } from "./format.js";
import { part } from "./server.js";

/** Names of the API's levels of health. */
export const LEVELS = { ok: "Healthy", warning: "Attention", problem: "Problem", unknown: "Unknown" };

/** Text with its commands, between backticks, as code. */
const marked = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

/** Reasons of a stream's health. */
export const reasons = (lines, attributes) =>
  h("ul", { class: "reasons", ...attributes }, lines.map((line) => h("li", {}, marked(line))));

/** State of a stream in a word: its health, or that it has ended well. */
export const state = ({ standing, health: { level } }) =>
  (standing === "retired" && level === "ok" ? "Retired" : LEVELS[level] ?? LEVELS.unknown);

/** State of a stream as a word with a shape. */
export function health(stream) {
  const level = stream.health.level in LEVELS ? stream.health.level : "unknown";
  const word = state(stream);
  // What has ended is neither well nor unwell.
  const look = word === "Retired" ? "unknown" : level;
  return field("health.level", level, [h("i", { class: "shape", "aria-hidden": "true" }), word], { class: `health ${look}` });
}

/** Time as a distance from now, with the exact time as its title. */
export function when(iso, name) {
  if (!iso) return NONE;
  return h("time", { datetime: iso, title: exact(iso), "data-ago": "", "data-field": name, "data-value": iso }, ago(iso));
}

/** Update the distances from now. */
export function renewTimes() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const text = ago(time.getAttribute("datetime"));
    if (time.textContent !== text) time.textContent = text;
  }
}

/** Show a charge, each of its numbers under its own field. */
export function chargeFields(name, value) {
  const parts = chargeParts(value);
  if (!parts.length) return NONE;
  return parts.map((p, i) => [
    i ? ", " : "",
    h("span", { class: "pair" }, h("abbr", { title: p.name }, p.symbol), " ",
      field(`${name}.${p.name}`, p.text, number(p.value), { title: p.text })),
  ]);
}

/** Bar of a part of a whole, from 0 to 1. */
export function bar(part, label, kind = "") {
  return svg(
    "svg",
    { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { width: 100, height: 10 }),
    svg("rect", { class: `part ${kind}`, width: (100 * Math.min(Math.max(part, 0), 1)).toFixed(2), height: 10 }),
  );
}

/** Bar of a spent share of the cap; orange only if the next batch is refused. */
export const budgetBar = (spent, allowed = true) =>
  (isNumber(spent) ? bar(spent, `${share(spent)} of the cap is charged`, allowed ? "" : "refused") : h("p", { class: "faint" }, "The cap is unlimited."));

/** Sentence about a stream's budget. */
export function budgetWords(budget, unit) {
  if (!budget.allows_next) return "The cap does not allow the next batch";
  if (!isNumber(budget.spent_share)) return "Records can be charged without limit";
  if (budget.spent_share === 0) return "Nothing is charged yet";
  const spent = budget.spent_share >= 1 ? "Spent as planned: " : "";
  const each = unit === "user" ? "one charge covers all batches of the stream" : "records that arrive have their own budget";
  return spent ? spent + each : each[0].toUpperCase() + each.slice(1);
}

/** Text for nulls of a stream or ledger that can mean anything; null if they mean "none". */
export const unread = ({ problem }, { loaded }) =>
  (problem ? "Not known: the topics cannot be read" : loaded ? null : "Not known: the topics cannot be read yet");

/** Budget in a cell: bar, the charged and the remaining part, and the budget of new records. */
export function budgetCell(budget, unit, unknown) {
  if (!budget) return h("span", { class: "faint" }, unknown ?? "No ledger");
  const left = largest(spentParts(budget.by_all, budget.cap, budget.left));
  const spent = budget.spent_share;
  return h("div", { class: "budget", title: `Of the record with the largest charge ${charge(budget.left)} is left of ${charge(budget.cap)}` }, budgetBar(spent, budget.allows_next),
    h("span", { class: "small faint" },
      isNumber(spent) && spent > 0 && spent < 1
        ? [h("span", { class: "pair" }, field("budget.spent_share", spent, share(spent)), " charged"), ", ",
          left ? h("span", { class: "pair" }, h("abbr", { title: left.name }, left.symbol), " ", field(`budget.left.${left.name}`, left.text, number(left.value)), " left. ") : ""] : "",
      field("budget.allows_next", budget.allows_next, budgetWords(budget, unit))));
}

/** Number of records; the API counts messages where the unit of privacy is a row. */
export const recordsCell = (name, value, unit) => [field(name, value, count(value)), unit === "row" ? h("span", { class: "small under" }, "messages") : null];

/** Size of the batch that fills: "4,200 of 20,480". */
export const fillText = ({ waiting, planned }) => `${count(waiting)} of ${count(planned)}`;

/** When the batch that fills may be full, in words. */
export function fillWords({ waiting, planned, per_second: rate }, budget, leader) {
  if (budget && !budget.allows_next) return waiting >= planned ? "full, but the cap does not allow it" : "the cap does not allow it";
  if (waiting >= planned) return leader && !leader.present ? "full: it waits for a worker" : "full: the worker can process it";
  if (!isNumber(rate)) return "measuring how fast records arrive";
  return rate > 0 ? `may be full in ${span((planned - waiting) / rate)}` : "records have paused";
}

/** Text for a release without an angle: retention may have deleted the releases before it. */
export const noAngle = (release) => h("span", { class: "faint" }, release.batch === 1 ? "First release" : "No earlier release");

/** Angle to the previous release, with a bound on the effect of noise. */
export function angleCell(last) {
  if (!isNumber(last?.angle)) return last ? noAngle(last) : h("span", { class: "faint" }, NONE);
  const bound = last.angle_bound;
  return [
    field("last_release.angle", last.angle, angle(last.angle)),
    h("span", { class: "small under", title: "Angle of this release to the subspace without noise and, unless it is doubted, clips, at most, with probability 0.95" },
      !isNumber(bound) ? "no bound" : bound >= Math.PI / 2 - 1e-9 ? "own error up to 90°"
        : ["own error ≤\u00a0", field("last_release.angle_bound", bound, atMost(bound))]),
  ];
}

export function leaderCell({ leader, standing }) {
  if (standing === "retired") return h("span", { class: "faint" }, "Not needed");
  if (!leader) return h("span", { class: "faint" }, "Unknown");
  const standby = leader.candidates - (leader.present ? 1 : 0);
  return [
    field("leader.present", leader.present, leader.present ? (leader.host ?? "A process") : "No process", { class: leader.present ? "host" : "host missing" }),
    h("span", { class: "small under" }, field("leader.candidates", leader.candidates, standby ? `${count(standby)} standing by` : "none standing by")),
  ];
}

export const shareCell = (value) => field("last_release.explained_share", value, share(value));

export const streamPath = (name) => `streams/${part(name)}`;
export const ledgerPath = (input) => `ledger/${part(input)}`;

/** Link within the dashboard. */
export function link(root, path, text, attributes) {
  return h("a", { href: new URL(path, root).href, "data-link": "", ...attributes }, text);
}

/** List of names and values. */
export function facts(rows, attributes) {
  return h("dl", { class: "facts", ...attributes },
    rows.filter(Boolean).map(([name, value, note]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? h("span", { class: "small under" }, note) : null))));
}

export function section(id, title, ...content) {
  return h("section", { "aria-labelledby": `${id}-title`, class: "card", "data-key": id },
    h("h2", { id: `${id}-title` }, title), content);
}

/** Table whose rows become cards on narrow screens. Columns: {title, number, cell(row)}. */
export function table(caption, columns, rows, { row = () => ({}), hidden = false, kind = "" } = {}) {
  const head = columns.map((c) => h("th", { scope: "col", role: "columnheader", class: c.number ? "number" : null }, c.head ?? c.title));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { role: "table", class: kind },
      h("caption", { class: hidden ? "unseen" : null }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
      h("tbody", { role: "rowgroup" }, rows.map((item) =>
        h("tr", { role: "row", ...row(item) }, columns.map((c, i) =>
          h(i ? "td" : "th", { role: i ? "cell" : "rowheader", scope: i ? null : "row", class: [c.number && "number", c.whole && "whole"].filter(Boolean).join(" ") || null, "data-label": c.title }, c.cell(item))))))));
}

/** Message in place of missing content. */
export function empty(title, ...lines) {
  return h("div", { class: "empty", "data-empty": "" }, h("p", { class: "strong" }, title), lines.map((line) => h("p", {}, line)));
}

export function trouble(text) {
  return h("p", { class: "trouble", "data-problem": "" }, h("i", { class: "shape", "aria-hidden": "true" }), marked(text));
}

/** Tabs that arrow keys, Home and End select. */
export function tabs(label, items) {
  const buttons = [];
  const choose = (index, focus) => {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === index));
      button.tabIndex = i === index ? 0 : -1;
      items[i].panel.hidden = i !== index;
    });
    if (focus) buttons[index].focus();
  };
  items.forEach((item, i) => {
    const id = `tab-${item.id}`;
    item.panel.id = `panel-${item.id}`;
    for (const [name, value] of [["role", "tabpanel"], ["aria-labelledby", id], ["tabindex", "0"]]) item.panel.setAttribute(name, value);
    buttons.push(h("button", { type: "button", role: "tab", id, "aria-controls": item.panel.id, on: { click: () => choose(i, false) } }, item.title));
  });
  const list = h("div", { role: "tablist", "aria-label": label, class: "tabs" }, buttons);
  list.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    choose((to + buttons.length) % buttons.length, true);
  });
  choose(0, false);
  return h("div", { "data-keep": "" }, list, items.map((item) => item.panel));
}

/** Button that runs a slow task and shows its result. */
export function action(text, run, attributes) {
  const status = h("span", { role: "status", class: "small" });
  const button = h("button", { type: "button", ...attributes }, text);
  button.addEventListener("click", async () => {
    button.disabled = true;
    status.textContent = "";
    try {
      status.textContent = (await run()) ?? "";
    } catch (error) {
      status.textContent = error.message;
    }
    button.disabled = false;
  });
  return [button, status];
}
