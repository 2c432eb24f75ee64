// Page of one ledger: cap and jobs, its verification, any record's charge, its entries.

import { announce, field, h, show } from "./dom.js";
import { chargeParts, clock, count, decimal, largest, many, number, share, spentParts } from "./format.js";
import { makeEntries } from "./entries.js";
import { rule } from "./ledgers.js";
import * as components from "./components.js";
import { get, part, request, ROOT, ServerError } from "./server.js";

const STREAMS = 200;
const ASK_AGAIN_MS = 1000;
const LONGEST_OFFSET = 2n ** 63n - 1n;
const LONGEST_PARTITION = 2n ** 31n - 1n;

export function open(main, input, refresh) {
  const base = `v1/ledger/${part(input)}`;
  const state = { entries: null, streams: new Map(), timer: 0 };
  const problem = h("div", { hidden: true });
  const summary = h("div", { class: "stack" });
  const jobs = h("div", {});
  const entries = makeEntries(base);
  const verification = makeVerification(base, refresh);
  const record = makeRecord(base);
  const lists = [
    components.section("jobs", "Jobs", jobs),
    h("div", { class: "columns" }, components.section("record", "Charge of any record", record.node), components.section("verification", "Verification", verification.node)),
    components.section("entries", "Entries", entries.node),
  ];
  const body = h("div", { class: "stack wide", "data-ledger": input, hidden: true }, problem, components.section("cap", "Charges and cap", summary), lists);
  main.replaceChildren(
    h("div", { class: "title" }, h("h1", {}, input), h("p", { class: "lead" }, "Ledger of this input topic. ", components.link(ROOT, "ledger", "All ledgers"))),
    body);

  function paint(found) {
    show(problem, found.problem ? components.trouble(found.problem) : null);
    problem.hidden = !found.problem;
    for (const list of lists) list.hidden = !found.cap;
    if (!found.cap) {
      show(summary, found.problem ? components.empty("The numbers of this ledger are not known.", "They appear as soon as it can be read.")
        : components.empty("This ledger is not open.", "Set its cap: streaming-pca topics create --config FILE --cap EPSILON,DELTA"));
      return;
    }
    const stream = [...state.streams.values()].find((s) => s.budget);
    const spent = found.filter === "zcdp" ? (stream?.budget.spent_share ?? null) : (largest(spentParts(found.most_charged, found.cap))?.share ?? null);
    show(summary,
      spent === null ? null : h("div", { class: "budget" }, components.budgetBar(spent),
        h("span", { class: "small" }, field("spent_share", spent, share(spent)), ` of the cap is charged to the record with the largest charge. ${found.everywhere ? "" : "Records that arrive have their own budget."}`)),
      components.facts([
        ["Largest charge of any record", components.chargeFields("most_charged", found.most_charged)],
        ["Cap of every record", components.chargeFields("cap", found.cap)],
        found.everywhere ? ["Charge of every record", components.chargeFields("everywhere", found.everywhere), "by streams whose unit is a user"] : null,
        ["Charges add up by", field("filter", found.filter, rule(found.filter))],
        ["Entries", field("entries", found.entries, count(found.entries))],
        ["Id of the topic", h("span", { class: "digest" }, field("topic_id", found.topic_id, found.topic_id)), "it changes when the topic is recreated"],
      ], { class: "facts spread" }));
    show(jobs, found.jobs.length ? jobTable(found.jobs, state.streams)
      : components.empty("No job has written here yet.", "A stream appears with its first batch, or when charges are made by hand."));
    entries.jobs(found.jobs.map((job) => job.name), state.streams);
  }

  return {
    title: `Ledger of ${input}`,
    wants: (event) => event.kind === "ledger" && event.input === input,
    async refresh(signal) {
      // Alone and first: without a ledger, the other requests would fail.
      const found = await get(base, { signal });
      const [streams, verified] = await Promise.all([streamsOf(input, signal), get(`${base}/verification`, { signal })]);
      state.streams = streams.found;
      paint(found);
      body.hidden = false;
      verification.paint(verified);
      const grown = state.entries !== `${found.topic_id} ${found.entries}`;
      state.entries = `${found.topic_id} ${found.entries}`;
      if (found.cap) await entries.refresh(signal, found.topic_id);
      if (found.cap && grown) await record.refresh(signal);
      return streams.connection;
    },
    close() {
      verification.close();
    },
  };
}

/** Fetch the streams of an input topic, by name, and the connection. */
async function streamsOf(input, signal) {
  const found = new Map();
  let after = "";
  for (;;) {
    const page = await get(`v1/streams?limit=${STREAMS}${after}`, { signal });
    for (const stream of page.items) if (stream.input === input) found.set(stream.name, stream);
    if (!page.next) return { found, connection: page.connection };
    after = `&after=${part(page.next)}`;
  }
}

function jobTable(jobs, streams) {
  const number = (title, name, value, head = title) => ({ title, head, number: true, cell: (job) => field(name, value(job), count(value(job))) });
  const records = (title, name, head = title) => ({ title, head, number: true, cell: (job) => components.recordsCell(name, job[name], streams.get(job.name)?.privacy_unit) });
  const columns = [
    { title: "Job", cell: (job) => (streams.has(job.name) ? components.link(ROOT, components.streamPath(job.name), job.name, { class: "name" }) : h("span", { class: "name" }, job.name)) },
    { title: "Standing", cell: (job) => field("standing", job.standing, job.standing) },
    number("Batches processed", "batches.committed", (job) => job.batches.committed),
    number("Batches abandoned", "batches.abandoned", (job) => job.batches.abandoned, "abandoned"),
    number("Batches released", "batches.released", (job) => job.batches.released, "released"),
    records("Records processed", "records_committed"),
    records("Records abandoned", "records_abandoned", "abandoned"),
    number("Charges by hand", "charges", (job) => job.charges),
  ];
  return components.table("Jobs by name", columns, jobs, { hidden: true, kind: "cards inner flow", row: (job) => ({ "data-job": job.name, "data-key": job.name }) });
}

/** Button of the verifier and its last result. */
function makeVerification(base, refresh) {
  let timer = 0;
  let running = false;
  let closed = false;
  let before = null;
  const result = h("div", { class: "stack", "aria-live": "polite" });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const button = h("button", { type: "button", "data-action": "verify" }, "Verify now");
  button.addEventListener("click", async () => {
    if (running) return;
    wrong.textContent = "";
    try {
      const begun = await (await request(`${base}/verification`, { method: "POST" })).json();
      if (closed) return;
      if (begun.state === "running" || begun.finished !== before) paint(begun);
      else wrong.textContent = "Another ledger is being verified: try again when that has ended.";
    } catch (error) {
      wrong.textContent = error.message;
    }
  });

  function paint(found) {
    running = found.state === "running";
    before = found.finished;
    // Not "disabled": a disabled button loses the focus.
    button.setAttribute("aria-disabled", String(running));
    show(result, shown(found));
    clearTimeout(timer);
    if (running && !closed) timer = setTimeout(refresh, ASK_AGAIN_MS);
  }

  return {
    node: [
      h("p", { class: "faint" }, "The independent verifier reads the ledger, the releases and, if permitted, the states, and derives each charge again. It writes nothing."),
      h("div", { class: "row" }, button), wrong, result],
    paint,
    close() {
      closed = true;
      clearTimeout(timer);
    },
  };
}

function shown(found) {
  const line = (level, text) => h("p", { class: `health ${level}` }, h("i", { class: "shape", "aria-hidden": "true" }), field("verification.state", found.state, text));
  const times = found.finished
    ? h("p", { class: "small faint" }, "Ended ", components.when(found.finished, "verification.finished"), found.entries === null ? "" : [", after ", field("verification.entries", found.entries, many(found.entries, "entry", "entries"))])
    : null;
  const partly = found.states === false
    ? h("p", { class: "small" }, field("verification.states", false, "The states were not compared: the user of this dashboard may not read them. Workers compare them."))
    : null;
  switch (found.state) {
    case "never":
      return line("unknown", "Not run since this dashboard was started");
    case "running":
      return [line("unknown", `Running since ${clock(new Date(found.started))}`), h("progress", { "aria-label": "The verifier runs" })];
    case "verified":
      return [line("ok", `Verified${partly ? ", without states" : ""}: no problem found`), partly, times];
    case "problems":
      return [line("problem", `${many(found.problems.length, "problem")} found`), partly, times, lines(found.problems)];
    default:
      return [line("warning", "The verifier could not run"), times, lines(found.problems)];
  }
}

const lines = (texts) => h("ul", { class: "problems", "data-field": "verification.problems" }, texts.map((text) => h("li", {}, text)));

/** Form of a record's partition and offset, and its charges. */
function makeRecord(base) {
  const asked = new URLSearchParams(location.search);
  const box = (name) => h("input", { type: "text", id: `record-${name}`, name, inputmode: "numeric", autocomplete: "off", spellcheck: "false", value: asked.get(name) ?? "", "aria-describedby": "record-wrong" });
  const [partition, offset] = [box("partition"), box("offset")];
  const wrong = h("p", { class: "wrong", id: "record-wrong", role: "alert" });
  const answer = h("div", { class: "stack", "aria-live": "polite" });
  let known = partition.value && offset.value ? [partition.value.trim(), offset.value.trim()] : null;
  let last = new AbortController();

  const complain = (text, bad = []) => {
    wrong.textContent = text;
    for (const field of [partition, offset]) {
      if (bad.includes(field)) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
  };
  const faulty = (input, most) => !/^\d{1,19}$/.test(input.value.trim()) || BigInt(input.value.trim()) > most;

  async function ask(signal) {
    last.abort();
    last = new AbortController();
    const own = last;
    signal?.addEventListener("abort", () => own.abort());
    try {
      const found = await get(`${base}/records/${known[0]}/${known[1]}`, { signal: own.signal });
      complain("");
      show(answer, charges(found, known));
      return found;
    } catch (error) {
      if (error.name === "AbortError") return null;
      if (!(error instanceof ServerError)) throw error;
      known = null;
      show(answer);
      complain(error.message, [/^partition/.test(error.message) ? partition : offset]);
      return null;
    }
  }

  const form = h("form", { "data-form": "record", class: "fields", novalidate: true },
    h("div", { class: "control" }, h("label", { for: "record-partition" }, "Partition"), partition),
    h("div", { class: "control" }, h("label", { for: "record-offset" }, "Offset"), offset),
    h("button", { type: "submit", class: "primary" }, "Look up"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    for (const [input, name, most] of [[partition, "Partition", LONGEST_PARTITION], [offset, "Offset", LONGEST_OFFSET]]) {
      if (!faulty(input, most)) continue;
      show(answer);
      complain(`${name} “${input.value.trim().slice(0, 30)}” must be a whole number from 0 to ${most}.`, [input]);
      input.focus();
      return;
    }
    known = [partition, offset].map((input) => String(BigInt(input.value.trim())));
    const url = new URL(location.href);
    url.searchParams.set("partition", known[0]);
    url.searchParams.set("offset", known[1]);
    history.replaceState(history.state, "", url);
    try {
      if (await ask()) announce("The charges of the record are shown.");
    } catch (error) {
      show(answer);
      complain(error.message);
    }
  });
  return {
    node: [
      h("p", { class: "faint" }, "What one record was charged, by all jobs together and by each. Nothing is read of the record itself."),
      form, h("div", { "data-result": "record", class: "stack" }, wrong, answer)],
    async refresh(signal) {
      if (known && ![[partition, LONGEST_PARTITION], [offset, LONGEST_OFFSET]].some(([i, most]) => faulty(i, most))) await ask(signal);
    },
  };
}

function charges(found, [partition, offset]) {
  const parts = spentParts(found.spent, found.cap, found.left);
  const spent = largest(parts)?.share ?? null;
  const full = parts.filter((p) => p.value === 0);
  const symbols = full.map((p) => p.symbol).join(" and ");
  const most = !full.length ? `${share(spent)} of the cap` : full.length === chargeParts(found.left).length ? "the whole cap: this record cannot be charged again"
    : `the whole ${symbols} of the cap: this record cannot be charged any ${symbols} again`;
  const jobs = Object.entries(found.jobs);
  const of = (name) => ({ title: { epsilon: "ε", delta: "δ", rho: "ρ" }[name], number: true, cell: ([, charge]) => field(name, charge[name], number(decimal(charge[name])), { title: charge[name] }) });
  const names = ["epsilon", "delta", "rho"].filter((name) => jobs.some(([, charge]) => charge[name] !== null));
  return [
    h("h3", {}, `Record ${offset} of partition ${partition}`),
    spent === null ? null : components.budgetBar(spent),
    components.facts([
      ["Charged", components.chargeFields("spent", found.spent), spent === null ? null : most],
      ["Left", components.chargeFields("left", found.left)],
      ["Cap", components.chargeFields("cap", found.cap)],
    ]),
    jobs.length ? components.table("Charge by job", [{ title: "Job", cell: ([name]) => name }, ...names.map(of)], jobs, { kind: "plain", row: ([name]) => ({ "data-job": name, "data-key": name }) })
      : h("p", { class: "faint" }, "No job has charged this record."),
  ];
}
