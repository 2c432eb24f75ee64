// Page with an overview of all streams.

import { field, h, show } from "./dom.js";
import { count, decimal, many, NONE } from "./format.js";
import * as components from "./components.js";
import { get, ROOT } from "./server.js";

const PAGE = 200;
const WORST = ["problem", "warning", "unknown", "ok"];
const last = (name) => (s) => s.last_release?.[name] ?? null;
/** Orders: title, value to sort by, and whether large values come first. */
const ORDERS = {
  name: ["Name", (s) => s.name, false],
  health: ["Health, worst first", (s) => WORST.indexOf(s.health.level), false],
  records: ["Records", (s) => s.records, true],
  release: ["Last release", (s) => Date.parse(s.last_release?.created ?? "") || null, true],
  share: ["Explained share", last("explained_share"), true],
  angle: ["Angle", last("angle"), true],
  budget: ["Budget charged", (s) => s.budget?.spent_share ?? null, true],
  lag: ["Lag", (s) => s.lag?.total ?? null, true],
};

/** Fetch all streams, page by page. */
async function load(signal) {
  let found = await get(`v1/streams?limit=${PAGE}`, { signal });
  const { connection } = found;
  const pages = [found];
  while (found.next) {
    found = await get(`v1/streams?limit=${PAGE}&after=${encodeURIComponent(found.next)}`, { signal });
    pages.push(found);
  }
  return { pages, streams: pages.flatMap((page) => page.items), connection };
}

function sorted(streams, order) {
  const [, value, falling] = ORDERS[order] ?? ORDERS.name;
  const of = (s) => value(s);
  return [...streams].sort((a, b) => {
    const [x, y] = [of(a), of(b)];
    if (x === null || y === null) return (x === null) - (y === null) || a.name.localeCompare(b.name);
    const by = typeof x === "string" ? x.localeCompare(y) : x - y;
    return (falling ? -by : by) || a.name.localeCompare(b.name);
  });
}

export function open(main) {
  const asked = new URLSearchParams(location.search);
  const state = { filter: asked.get("find") ?? "", order: asked.get("sort") in ORDERS ? asked.get("sort") : "name", data: null };

  const remember = () => {
    const url = new URL(location.href);
    for (const [key, value, usual] of [["find", state.filter, ""], ["sort", state.order, "name"]]) {
      if (value === usual) url.searchParams.delete(key);
      else url.searchParams.set(key, value);
    }
    history.replaceState(history.state, "", url);
  };
  const find = h("input", { type: "search", id: "find", value: state.filter, placeholder: "Name, topic or health", autocomplete: "off", spellcheck: "false" });
  const order = h("select", { id: "order" }, Object.entries(ORDERS).map(([key, [title]]) => h("option", { value: key, selected: key === state.order }, title)));
  const sortBy = (key) => {
    state.order = key;
    order.value = key;
    remember();
    paint();
  };
  find.addEventListener("input", () => {
    state.filter = find.value;
    remember();
    paint();
  });
  order.addEventListener("change", () => sortBy(order.value));

  const totals = h("p", { class: "lead", "data-totals": "" });
  const list = h("div", { class: "list" });
  const tools = h("form", { class: "tools", role: "search", "aria-label": "Streams", on: { submit: (e) => e.preventDefault() } },
    h("div", { class: "control" }, h("label", { for: "find" }, "Find"), find),
    h("div", { class: "control" }, h("label", { for: "order" }, "Sort by"), order));

  const head = (key, title) =>
    h("button", { type: "button", class: "sort", "aria-pressed": String(state.order === key), on: { click: () => sortBy(key) } }, title);
  const unread = (s) => components.unread(s, state.data.connection);
  const columns = () => [
    { title: "Stream", head: head("name", "Stream"), cell: nameCell },
    { title: "Health", head: head("health", "Health"), whole: true, cell: (s) => [components.health(s), s.health.reasons.length ? components.reasons(s.health.reasons, { "data-field": "health.reasons" }) : null] },
    { title: "Records", head: head("records", "Records"), number: true, cell: (s) => components.recordsCell("records", s.records, s.privacy_unit) },
    { title: "Next batch", head: head("lag", "Next batch"), number: true, cell: nextCell },
    { title: "Last release", head: head("release", "Last release"), number: true, cell: (s) => releaseCell(s, unread(s)) },
    { title: "Explained", head: head("share", "Explained"), number: true, cell: (s) => (s.last_release ? components.shareCell(s.last_release.explained_share) : NONE) },
    { title: "Angle to the previous release", head: head("angle", "Angle"), number: true, cell: (s) => components.angleCell(s.last_release) },
    { title: "Budget", head: head("budget", "Budget"), whole: true, cell: (s) => components.budgetCell(s.budget, s.privacy_unit, unread(s)) },
    { title: "Leader", cell: (s) => components.leaderCell(s) },
  ];

  function paint() {
    if (!state.data) return;
    const { streams, connection } = state.data;
    const words = state.filter.trim().toLowerCase();
    const wanted = sorted(streams, state.order).filter((s) =>
      [s.name, s.input, s.estimator, s.health.level, components.state(s)].some((text) => text.toLowerCase().includes(words)));
    const bad = streams.filter((s) => s.health.level === "problem").length;
    const watch = streams.filter((s) => s.health.level === "warning").length;
    const unknown = streams.filter((s) => s.health.level === "unknown").length;
    const [rows, others] = [true, false].map((is) => streams.filter((s) => (s.privacy_unit === "row") === is));
    const sum = (some, one) => (some.length ? `, ${many(some.reduce((total, s) => total + (s.records ?? 0), 0), one)}` : "");
    show(totals, h("span", {}, many(streams.length, "stream"), sum(others, "record"), sum(rows, "message"), bad ? `, ${many(bad, "problem")}` : "",
      watch ? `, ${count(watch)} ${watch === 1 ? "needs" : "need"} attention` : "", unknown ? `, ${count(unknown)} unknown` : "", words ? ` · ${count(wanted.length)} shown` : ""));
    tools.hidden = streams.length < 2;
    if (!streams.length) {
      show(list, connection.loaded || connection.ok
        ? components.empty("No stream is configured here yet.", "Give a stream's settings with --config, then start this dashboard again: streaming-pca dashboard --config stream.toml", "Or try the demo: make demo, then make dashboard.")
        : components.empty("The broker has not answered yet.", "Streams appear as soon as their topics can be read."));
    } else if (!wanted.length) {
      show(list, components.empty(`No stream matches “${state.filter}”.`, "The filter looks at names, topics, estimators and health."));
    } else {
      show(list, components.table("Streams at a glance", columns(), wanted, { hidden: true, kind: "streams cards", row: (s) => ({ "data-stream": s.name, "data-key": s.name }) }));
    }
  }

  main.replaceChildren(h("div", { class: "title" }, h("h1", {}, "Streams"), totals), tools, list);
  return {
    title: "Streams",
    wants: () => true,
    async refresh(signal) {
      const before = state.data;
      state.data = await load(signal);
      // Unchanged pages, not transferred again, are the same objects.
      if (!before || state.data.pages.length !== before.pages.length || state.data.pages.some((page, i) => page !== before.pages[i])) paint();
      return state.data.connection;
    },
    close() {},
  };
}

function nameCell(stream) {
  const guarantee = stream.private
    ? `ε\u00a0${decimal(stream.epsilon) ?? NONE} per\u00a0${stream.privacy_unit}`
    : "not private";
  return [
    components.link(ROOT, components.streamPath(stream.name), stream.name, { class: "name" }),
    h("span", { class: "small under" }, `${stream.input} · ${stream.estimator} · ${stream.rank}\u00a0of\u00a0${count(stream.dim)} · `,
      h("span", { class: stream.private ? null : "strong" }, guarantee)),
  ];
}

function releaseCell({ last_release: release }, unknown) {
  if (!release) return h("span", { class: "faint" }, unknown ?? "None yet");
  return [
    components.when(release.created, "last_release.created"),
    h("span", { class: "small under" }, "batch ", field("last_release.batch", release.batch, count(release.batch)),
      release.doubts?.length ? `, ${many(release.doubts.length, "doubt")}` : ""),
  ];
}

function nextCell(stream) {
  const { budget, lag, leader, next_batch: next } = stream;
  if (!lag) return NONE;
  const each = Object.entries(lag.partitions).map(([p, n]) => `partition ${p}: ${count(n)}`).join(", ");
  const waiting = field("lag.total", lag.total, many(lag.total, "offset"), { title: each });
  if (!next) return [waiting, h("span", { class: "small under" }, "wait")];
  return [
    field("next_batch.waiting", next.waiting, components.fillText(next)),
    h("span", { class: "small under" }, components.fillWords(next, budget, leader), lag.total > next.planned ? ["; ", waiting, " wait"] : ""),
  ];
}
