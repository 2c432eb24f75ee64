// Entries of a ledger, newest first: a row for each batch that opens, abbreviated ranges, void entries with their reasons.

import { field, h, show } from "./dom.js";
import { count, many } from "./format.js";
import * as components from "./components.js";
import { get, part } from "./server.js";

const PAGE = 50;
const MOST_ROUNDS = 4;
const SHOWN_RANGES = 2;
/** Join adjacent ranges of each partition. */
export function joined(ranges) {
  const found = [];
  for (const range of [...ranges].sort((a, b) => a.partition - b.partition || a.start - b.start)) {
    const last = found.at(-1);
    if (last && last.partition === range.partition && range.start <= last.end) last.end = Math.max(last.end, range.end);
    else found.push({ ...range });
  }
  return found;
}

/** Format a range with both ends. */
export function rangeText({ partition, start, end }) {
  // Such large ends mean "all future offsets", and a double cannot represent them exactly.
  const to = end > Number.MAX_SAFE_INTEGER ? " and on" : end - 1 > start ? `–${count(end - 1)}` : "";
  return end > start ? `${partition}: ${count(start)}${to}` : `${partition}: none`;
}

function rangesCell(ranges) {
  if (!ranges.length) return null;
  const all = joined(ranges);
  const line = (range) => h("span", { class: "range" }, rangeText(range));
  if (all.length <= SHOWN_RANGES + 1) return h("div", {}, all.map(line));
  return h("div", {}, all.slice(0, SHOWN_RANGES).map(line),
    h("details", {}, h("summary", {}, `${count(all.length - SHOWN_RANGES)} more`), all.slice(SHOWN_RANGES).map(line)));
}

function noteCell(entry) {
  if (entry.void === null && entry.reason === null) return null;
  return h("div", {}, entry.void === null ? null : [h("span", { class: "strong" }, "Not counted: "), field("void", entry.void, entry.void)],
    entry.reason === null ? null : h("span", { class: entry.void === null ? null : "under" }, field("reason", entry.reason, entry.reason)));
}

/**
 * Fold the entries of each batch into one item, at the place of the newest: {key, entries}.
 *
 * Void entries, and entries about no batch, are items of their own.
 */
export function folded(rows) {
  const batches = new Map();
  const items = [];
  for (const entry of rows) {
    const folds = entry.batch !== null && entry.void === null;
    const key = folds ? `${entry.job} ${entry.batch}` : String(entry.offset);
    if (folds && batches.has(key)) {
      batches.get(key).entries.push(entry);
      continue;
    }
    const item = { key, entries: [entry] };
    if (folds) batches.set(key, item);
    items.push(item);
  }
  return items;
}

const COLUMNS = [
  { title: "Offset", number: true, cell: ({ offset, last }) => field("offset", offset, last === undefined ? count(offset) : `${count(last)}–${count(offset)}`) },
  { title: "Kind", cell: (e) => [field("kind", e.kind, e.kind[0] + e.kind.slice(1).toLowerCase(), { class: "kind" }), e.fold] },
  { title: "Job", cell: (e) => (e.job === null ? null : field("job", e.job, e.job)) },
  { title: "Batch", number: true, cell: (e) => (e.batch === null ? null : field("batch", e.batch, count(e.batch))) },
  { title: "Records", number: true, cell: (e) => (e.records === null ? null : components.recordsCell("records", e.records, e.unit)) },
  { title: "Charge of each", cell: (e) => (e.charge === null ? null : h("div", {}, components.chargeFields("charge", e.charge))) },
  { title: "Partition: offsets", cell: (e) => rangesCell(e.ranges) },
  { title: "Note", cell: (e) => (e.lacks ? "Records and charge: among older entries" : noteCell(e)) },
];

/** Table of entries with a job filter. ``refresh`` adds new entries and keeps older rows. */
export function makeEntries(base) {
  let rows = [];
  let wanted = PAGE;
  let older = false;
  let complete = true;
  let life = null;
  let job = new URLSearchParams(location.search).get("job") ?? "";
  let names = null;
  let streams = new Map();
  const open = new Set();

  const choice = h("select", { id: "entries-job" }, h("option", { value: "" }, "All jobs"));
  const tools = h("div", { class: "control" }, h("label", { for: "entries-job" }, "Job"), choice);
  const list = h("div", {});
  const status = h("p", { class: "small faint", role: "status" });
  const button = h("button", { type: "button", "data-action": "older" }, "Older entries");
  const page = (before, limit, signal) =>
    get(`${base}/entries?limit=${limit}${before === null ? "" : `&before=${before}`}${job ? `&job=${part(job)}` : ""}`, { signal });

  /** Rows of an item: one for a batch, followed by its entries while it is open. */
  function shown({ key, entries: [newest, ...others] }) {
    // A page may end between the entries of a batch.
    const reserved = [newest, ...others].find((entry) => entry.kind === "RESERVED");
    const lacks = older && newest.batch !== null && newest.void === null && !reserved;
    if (!others.length) return [{ ...newest, key, lacks }];
    const { records, ranges, charge } = reserved ?? newest;
    const opens = open.has(key);
    const fold = h("button", { type: "button", class: "unfold", "aria-expanded": String(opens), "aria-label": `${others.length + 1} entries of batch ${newest.batch} of ${newest.job}`, on: { click: () => {
      if (!open.delete(key)) open.add(key);
      paint();
    } } }, `${count(others.length + 1)} entries`);
    const batch = { ...newest, last: others.at(-1).offset, records, ranges, charge, fold, key, lacks };
    return [batch, ...(opens ? [newest, ...others].map((entry) => ({ ...entry, of: key })) : [])];
  }

  const attributes = (e) => ({
    "data-entry": e.fold && open.has(e.key) ? null : e.offset, "data-batch": e.fold ? e.batch : null, "data-key": e.key ?? e.offset,
    class: e.void !== null ? "void" : e.of ? "part-of" : null,
  });

  function paint() {
    show(list, rows.length
      ? components.table("Entries by batch, newest first", COLUMNS, folded(rows).flatMap(shown).map((e) => ({ ...e, unit: streams.get(e.job)?.privacy_unit })), { hidden: true, kind: "cards inner flow entries", row: attributes })
      : components.empty(job ? `Job “${job}” has no entries here.` : "No entries yet."));
    button.hidden = !older;
    const end = older ? "" : complete ? "These are all entries." : "Earlier entries are not kept here: streaming-pca ledger show lists them all.";
    status.textContent = rows.length ? `${many(rows.length, "entry", "entries")} shown. ${end}` : "";
  }

  async function refresh(signal, id) {
    const asked = job;
    let found = await page(null, PAGE, signal);
    const news = [...found.items];
    const newest = rows[0]?.offset ?? -1;
    const same = id === undefined || life === null || id === life;
    for (let round = 1; same && rows.length && round < MOST_ROUNDS && found.next !== null && news.at(-1).offset > newest; round += 1) {
      found = await page(found.next, PAGE, signal);
      news.push(...found.items);
    }
    if (asked !== job) return;
    const meets = same && rows.length && news.length && news[0].offset >= newest && (found.next === null || news.at(-1).offset <= newest);
    if (id !== undefined) life = id;
    complete = found.complete;
    if (meets) {
      const edge = news.at(-1).offset;
      // Rows older than the fetched pages stay valid: entries never change.
      const held = rows.filter((row) => row.offset < edge);
      older = found.next !== null && (held.length ? older : true);
      rows = [...news, ...held];
    } else {
      wanted = PAGE;
      older = found.next !== null;
      rows = news;
    }
    if (rows.length > wanted) {
      rows.length = wanted;
      older = true;
    }
    paint();
  }

  const carefully = async (run) => {
    try {
      await run();
    } catch (error) {
      status.textContent = error.message;
    }
  };
  button.addEventListener("click", () => carefully(async () => {
    const asked = job;
    let edge = null;
    let found = null;
    // A refresh may have dropped the last row during the request: then fetch from the new last row.
    for (let round = 0; round < MOST_ROUNDS && (found === null || rows.at(-1).offset !== edge); round += 1) {
      edge = rows.at(-1).offset;
      found = await page(edge, PAGE);
      if (asked !== job || !rows.length) return;
    }
    if (rows.at(-1).offset !== edge) return;
    rows.push(...found.items);
    wanted = rows.length;
    older = found.next !== null;
    complete = found.complete;
    paint();
    // If the button is now hidden, it has lost the keyboard focus.
    if (!older) status.focus();
  }));
  status.tabIndex = -1;
  choice.addEventListener("change", () => {
    job = choice.value;
    const url = new URL(location.href);
    if (job) url.searchParams.set("job", job);
    else url.searchParams.delete("job");
    history.replaceState(history.state, "", url);
    rows = [];
    wanted = PAGE;
    carefully(() => refresh());
  });

  return {
    node: [tools, list, h("div", { class: "row" }, button, status)],
    refresh,
    /** Offer these jobs; the known streams among them have units of privacy. */
    jobs(found, known) {
      streams = known;
      if (job && !found.includes(job)) job = "";
      const key = found.join("\n");
      if (key !== names) {
        names = key;
        choice.replaceChildren(h("option", { value: "" }, "All jobs"), ...found.map((n) => h("option", { value: n }, n)));
      }
      choice.value = job;
      tools.hidden = found.length < 2;
    },
  };
}

