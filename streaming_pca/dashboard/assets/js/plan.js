// Page of forecasts: sliders and the predicted results, before any budget is spent.

import { field, h, show } from "./dom.js";
import { charge, count, decimal, degrees, isNumber, many, number, share } from "./format.js";
import * as components from "./components.js";
import { get, ServerError } from "./server.js";

const SETTLE_MS = 120;
const TENTHS = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
const FIFTHS = [1, 2, 5];
/** Quantities: bounds of the API, bounds and steps of the slider, and the default. */
const KNOBS = [
  { name: "dim", title: "Features", whole: true, min: 1, max: 8192, from: 2, usual: 50, hint: "Numbers in each record" },
  { name: "rank", title: "Rank", whole: true, min: 1, max: 8192, to: 200, usual: 2, hint: "Components to find" },
  { name: "records", title: "Records", whole: true, min: 1, max: 1e10, from: 1000, usual: 100000, hint: "Of the whole stream" },
  { name: "epsilon", title: "ε", spoken: "Epsilon", min: 0, above: true, max: 1000, from: 0.01, to: 100, usual: 1, hint: "Smaller is more private" },
  { name: "delta", title: "δ", spoken: "Delta", min: 0, above: true, max: 1, from: 1e-12, to: 0.01, steps: FIFTHS, usual: 1e-6, hint: "Below 1 over the number of records" },
  { name: "gap", title: "Gap", min: 0, above: true, max: 1, from: 1e-4, usual: 0.1, optional: true, blank: "none", hint: "Between eigenvalues k and k + 1, as a share of the total variance; may be empty" },
  { name: "tail", title: "Tail", min: 0.001, max: 1e6, from: 1, to: 1000, usual: 1, hint: "Clip radius of |x|² over its mean: 1 for records of one size, 2 to 5 for heavy tails" },
  { name: "batches", title: "Batches", whole: true, min: 1, max: 10000, usual: null, optional: true, blank: "growing", hint: "Equal ones; empty: growing ones, as the estimator takes them" },
  { name: "contributions", title: "Batches of one user", whole: true, min: 1, max: 10000, to: 1000, usual: 1, hint: "1 where a record is the unit of privacy" },
];
/** Quantities that requests omit at their defaults. */
const SPARE = new Set(["batches", "contributions"]);

/** Values of a slider: the same number in each decade, so that steps have similar ratios. */
function stops({ min, max, from = min, to = max, whole, steps = TENTHS }) {
  const found = new Set([from, to]);
  for (let decade = Math.floor(Math.log10(from)); decade <= Math.ceil(Math.log10(to)); decade += 1) {
    for (const step of steps) {
      const value = Number(`${step}e${decade}`);
      if (value >= from && value <= to && (!whole || Number.isInteger(value))) found.add(value);
    }
  }
  for (let value = 1; whole && value <= 10; value += 1) if (value >= from && value <= to) found.add(value);
  return [...found].sort((a, b) => a - b);
}

/** Format a value as a person would type it. */
function typed(value) {
  if (value === null) return "";
  return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : String(value);
}

/** Describe the error of a single value; null if it is valid. */
function wrongOf(knob, text) {
  if (text === "") return knob.optional ? null : `${knob.name} is missing: give a number.`;
  const value = Number(text);
  if (!Number.isFinite(value)) return `${knob.name} must be a number.`;
  if (knob.whole && !Number.isInteger(value)) return `${knob.name} must be a whole number.`;
  if (value < knob.min || (knob.above && value <= knob.min) || value > knob.max) {
    return `${knob.name} must ${knob.above ? "be above" : "lie between"} ${number(knob.min)}${knob.above ? ", up to " : " and "}${number(knob.max)}.`;
  }
  return null;
}

/** Row of a quantity: a slider and a number field with the same value. */
function makeKnob(spec, given, changed) {
  const values = stops(spec);
  const id = `plan-${spec.name}`;
  const label = spec.spoken ? `${spec.spoken} (${spec.title})` : spec.title;
  const box = h("input", { type: "number", id, name: `${spec.name}-number`, step: "any", inputmode: spec.whole ? "numeric" : "decimal", autocomplete: "off", "aria-describedby": `${id}-hint ${id}-wrong`, placeholder: spec.blank ?? null });
  const range = h("input", { type: "range", name: spec.name, min: 0, max: values.length - 1, step: 1, "aria-label": label, "aria-describedby": `${id}-hint` });
  const wrong = h("p", { class: "wrong small", id: `${id}-wrong`, role: "alert" });
  const nearest = (value) => values.reduce((best, v, i) =>
    (Math.abs(Math.log(v / value)) < Math.abs(Math.log(values[best] / value)) ? i : best), 0);
  const place = () => {
    const value = Number(box.value);
    const known = box.value !== "" && value > 0;
    if (known) range.value = nearest(value);
    range.setAttribute("aria-valuetext", known ? number(value, 6) : (spec.blank ?? "none"));
    range.classList.toggle("unset", !known);
  };
  box.value = given;
  range.value = nearest(spec.usual ?? values[0]);
  place();
  box.addEventListener("input", () => {
    place();
    changed();
  });
  range.addEventListener("input", () => {
    box.value = typed(values[Number(range.value)]);
    place();
    changed();
  });
  return {
    ...spec,
    node: h("div", { class: "slider" }, h("label", { for: id }, h("span", { class: "strong" }, label)), range, box,
      h("p", { class: "hint", id: `${id}-hint` }, spec.hint), wrong),
    // The value of a number field is empty if its text is not a number.
    text: () => (box.validity.badInput ? "?" : box.value.trim()),
    complain(text) {
      if (wrong.textContent !== text) wrong.textContent = text;
      if (text) box.setAttribute("aria-invalid", "true");
      else box.removeAttribute("aria-invalid");
    },
    set(value) {
      box.value = typed(value);
      place();
    },
  };
}

export function open(main, name, refresh) {
  const asked = new URLSearchParams(location.search);
  let timer = 0;
  let stale = new AbortController();
  const changed = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      remember();
      // The response for older values is outdated.
      stale.abort();
      refresh();
    }, SETTLE_MS);
  };
  const knobs = KNOBS.map((spec) => {
    const given = asked.get(spec.name);
    const known = given !== null && (given === "" ? spec.optional : Number.isFinite(Number(given)));
    return makeKnob(spec, known ? given : typed(spec.usual), changed);
  });
  const knob = (wanted) => knobs.find((k) => k.name === wanted);

  function remember() {
    const url = new URL(location.href);
    for (const k of knobs) {
      const text = k.text();
      if (text === typed(k.usual)) url.searchParams.delete(k.name);
      else url.searchParams.set(k.name, text);
    }
    history.replaceState(history.state, "", url);
  }

  /** Show errors next to the fields; return whether all are valid. */
  function check() {
    const found = new Map(knobs.map((k) => [k.name, wrongOf(k, k.text()) ?? ""]));
    const [dim, rank, gap] = ["dim", "rank", "gap"].map((n) => Number(knob(n).text()));
    if (!found.get("rank") && !found.get("dim") && rank > dim) found.set("rank", `rank = ${rank} is above dim = ${dim}: lower it, or take more features.`);
    else if (!found.get("gap") && gap > 1 / rank) found.set("gap", `gap = ${gap} is above 1/rank = ${number(1 / rank)}: ${rank} eigenvalues that large exceed the total variance.`);
    for (const k of knobs) k.complain(found.get(k.name));
    return ![...found.values()].some(Boolean);
  }

  function path() {
    const query = new URLSearchParams();
    for (const k of knobs) {
      const text = k.text();
      if (text !== "" && !(SPARE.has(k.name) && text === typed(k.usual))) query.set(k.name, String(Number(text)));
    }
    return `v1/plan?${query}`;
  }

  /** Show a rejection next to the field that it names. */
  function refused(line) {
    const named = knobs.find((k) => new RegExp(`^${k.name}\\b`).test(line)) ?? knobs.find((k) => new RegExp(`\\b${k.name}\\b`).test(line));
    if (named) named.complain(line);
    else rest.textContent = line;
  }

  const reset = h("button", { type: "button", class: "quiet", on: { click: () => {
    for (const k of knobs) k.set(k.usual);
    changed();
  } } }, "Usual values");
  const rest = h("p", { class: "wrong", role: "alert" });
  const form = h("form", { class: "card", "data-form": "plan", "aria-label": "Values of the forecast", on: { submit: (e) => e.preventDefault() } },
    h("div", { class: "head" }, h("h2", {}, "Your stream"), reset), h("div", { class: "sliders" }, knobs.map((k) => k.node)), rest);
  const answer = h("div", { class: "stack wide", "data-result": "plan", "aria-live": "polite", "aria-busy": "true" });
  main.replaceChildren(
    h("div", { class: "title" }, h("h1", {}, "Plan"), h("p", { class: "lead" }, "Noise, charges and errors before anything is spent. No record is read.")),
    h("div", { class: "plan" }, form, answer));

  return {
    title: "Plan",
    wants: () => false,
    async refresh() {
      stale = new AbortController();
      rest.textContent = "";
      const old = h("p", { class: "note" }, "These numbers are for the last accepted values.");
      const keep = () => {
        answer.setAttribute("aria-busy", "false");
        if (answer.firstChild && !answer.querySelector(":scope > .note")) answer.prepend(old);
      };
      if (!check()) {
        keep();
        return null;
      }
      try {
        const found = await get(path(), { signal: stale.signal });
        answer.setAttribute("aria-busy", "false");
        show(answer, forecast(found));
      } catch (error) {
        if (error.name === "AbortError") return null;
        if (!(error instanceof ServerError)) throw error;
        refused(error.message);
        keep();
      }
      return null;
    },
    close() {
      clearTimeout(timer);
      stale.abort();
    },
  };
}

/** Degrees of a subspace that noise has turned too far, as in the command. */
const LOST = 60;
const shared = (plan, name, sign = "") => [sign, field(name, plan[name], share(plan[name]))];

function headline(plan) {
  if (plan.gap !== null) {
    const turned = degrees(plan.angles[0]);
    const most = plan.is_bound ? "at most " : "";
    return [`With a gap of ${share(plan.gap)}, the subspace is expected `,
      turned > LOST ? h("strong", {}, "to be lost in noise") : [most, "about ", h("strong", {}, field("angle", plan.angles[0], `${number(turned, 2)}°`)), " from the one without noise"],
      `: ${most}`, field("error", plan.error, share(plan.error)), " of the error of a random subspace."];
  }
  const [, middle] = plan.targets;
  return middle.attainable
    ? [`An error of ${share(middle.error)} of that of a random subspace needs a gap of `, h("strong", {}, share(middle.gap_needed)), " of the total variance."]
    : [`An error of ${share(middle.error)} of that of a random subspace is out of reach: no ${many(plan.rank, "component")} can have the gap that it needs.`];
}

function sizes(batches) {
  if (batches.length === 1) return "one batch";
  const [low, high] = [Math.min(...batches), Math.max(...batches)];
  return `${count(batches.length)} batches of ${low === high ? count(low) : `${count(low)} to ${count(high)}`} records`;
}

function forecast(plan) {
  const unit = plan.contributions === 1 ? "Each record" : `Each user, in up to ${count(plan.contributions)} batches together,`;
  return [
    plan.warnings.length ? h("ul", { class: "warnings", "data-field": "warnings", "data-key": "warnings" }, plan.warnings.map((line) => components.trouble(line)).map((p) => h("li", {}, p))) : null,
    h("div", { class: "columns", "data-key": "answer" },
      h("div", { class: "stack wide" },
        components.section("forecast", "Forecast",
          h("p", { class: "big" }, headline(plan)),
          h("p", { class: "prose" },
            `${many(plan.records, "record")} of ${many(plan.dim, "feature")}, in ${sizes(plan.batches)}. ${unit} is charged ${charge(plan.charge)}. `,
            `Noise alone reaches an eigenvalue of ${share(plan.largest_noise)} of the total variance: components below that cannot be distinguished from noise.`),
          h("p", { class: "small faint prose" }, "Noise alone: clipping and sampling add to it. The part cut off by clipping adds 2% of an explained variance to its error, 0.2 to 10% on four data sets in five.",
            plan.is_bound ? " For this many features the noise follows what is left over: these are bounds." : "")),
        components.section("targets", "What an error requires", targets(plan)),
        components.section("command", "The same in a terminal", h("pre", { tabindex: "0", role: "region", "aria-label": "Command" }, h("code", { "data-snippet": "shell" }, command(plan))))),
      components.section("noise", "Numbers", values(plan))),
  ];
}

function targets(plan) {
  const columns = [
    { title: "Error", number: true, cell: (t) => field("error", t.error, share(t.error)) },
    { title: "Gap needed", number: true, cell: (t) => [field("gap_needed", t.gap_needed, t.attainable ? share(t.gap_needed) : "none"), t.attainable ? null : h("span", { class: "small under" }, `above 1/${count(plan.rank)}`)] },
  ];
  if (plan.gap !== null) {
    columns.push({ title: `Records for a gap of ${share(plan.gap)}`, number: true, cell: (t) => field("records_needed", t.records_needed, isNumber(t.records_needed) ? count(t.records_needed) : "above 10¹⁵") });
  }
  const caption = "Errors are shares of a random subspace's, gaps of the total variance.";
  return components.table(caption, columns, plan.targets, { kind: "targets", row: (t) => ({ "data-target": t.error }) });
}

function values(plan) {
  const shares = [["first", "the sum, first batch"], ["sizes", "sizes"], ["centre", "centre"], ["pilot", "first look"], ["later", "the sum, in each later batch"]];
  const rows = [
    ["Noise, of the total variance"],
    ["An entry", shared(plan, "entry_noise")],
    ["Largest eigenvalue", shared(plan, "largest_noise")],
    ["An explained variance", shared(plan, "explained_variance_error", "± ")],
    plan.total_variance_error === null ? null : ["The total itself", shared(plan, "total_variance_error", "± ")],
    ["Charge"],
    ...["epsilon", "delta", "rho"].filter((n) => plan.charge[n] !== null).map((n) => [{ epsilon: "Epsilon", delta: "Delta", rho: "Rho" }[n], field(`charge.${n}`, plan.charge[n], number(decimal(plan.charge[n])))]),
    ["One batch"],
    ["Gaussian privacy parameter μ", field("mu", plan.mu, number(plan.mu))],
    ["Noise multiplier", field("noise_multiplier", plan.noise_multiplier, number(plan.noise_multiplier, 4))],
    ["Batches", field("batches", plan.batches.length, count(plan.batches.length))],
    ["Shares of μ²"],
    ...shares.filter(([n]) => plan.shares[n]).map(([n, title]) => [title[0].toUpperCase() + title.slice(1), field(`shares.${n}`, plan.shares[n], share(plan.shares[n], 2))]),
  ].filter(Boolean);
  return h("table", { class: "numbers" }, h("caption", { class: "unseen" }, "Numbers of the forecast"),
    h("tbody", {}, rows.map(([title, value]) => (value === undefined
      ? h("tr", { class: "group" }, h("th", { scope: "colgroup", colspan: 2 }, title))
      : h("tr", {}, h("th", { scope: "row" }, title), h("td", { class: "number" }, value))))));
}

function command(plan) {
  const options = ["dim", "rank", "records", "epsilon", "delta"].map((n) => `--${n} ${typed(plan[n])}`);
  if (plan.gap !== null) options.push(`--gap ${typed(plan.gap)}`);
  if (plan.tail !== 1) options.push(`--tail ${typed(plan.tail)}`);
  // As numbers: a shell would execute what else a link may hold.
  const given = new URLSearchParams(location.search);
  const spare = (n) => Number(given.get(n)) || null;
  for (const n of SPARE) if (spare(n)) options.push(`--${n} ${typed(spare(n))}`);
  if (!spare("batches")) options.push("--batches growing");
  return `streaming-pca plan ${options.join(" ")}`;
}
