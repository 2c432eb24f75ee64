// Formats of numbers, charges and times for people.

const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const EXACT = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "long" });
const STEPS = [
  ["second", 1, 60],
  ["minute", 60, 60],
  ["hour", 3600, 24],
  ["day", 86400, 60],
  ["month", 2629800, 24],
  ["year", 31557600, Infinity],
];

export const NONE = "–";

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Format a whole number. */
export function count(value) {
  return isNumber(value) ? COUNT.format(value) : NONE;
}

/** Format a number with some digits; tiny and huge numbers get a power of ten. */
export function number(value, digits = 3) {
  if (!isNumber(value)) return value === Infinity ? "∞" : NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e7) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    const short = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
    return `${short}e${Number(exponent)}`.replace("-", "−").replace("e-", "e−");
  }
  return new Intl.NumberFormat("en", { maximumSignificantDigits: digits }).format(value).replace("-", "−");
}

/** Format a number with its standard error, both up to the error's second digit. */
export function measured(value, error, unit = "") {
  if (!isNumber(value) || !isNumber(error)) return isNumber(value) ? `${number(value)}${unit}` : NONE;
  const place = error > 0 ? Math.floor(Math.log10(error)) - 1 : -Infinity;
  const digits = Math.floor(Math.log10(Math.abs(value))) - place + 1;
  const shown = digits < 1 ? number(Math.round(value / 10 ** place) * 10 ** place, 1) : number(value, Math.min(digits, 15));
  return `${shown}${unit} ± ${number(error, 2)}${unit}`;
}

/** Format a share as a percentage. */
export function share(value, digits = 3) {
  if (!isNumber(value)) return NONE;
  const percent = 100 * value;
  return `${Math.abs(percent) >= 99.95 && percent < 100 ? "99.9" : number(percent, digits)}%`;
}

/** Format an angle in degrees. */
export function angle(radians) {
  return isNumber(radians) ? `${degrees(radians).toFixed(1)}°` : NONE;
}

/** Format a bound: rounded up, so that the text is one too. */
export function atMost(radians) {
  return isNumber(radians) ? `${(Math.ceil(10 * degrees(radians) - 1e-9) / 10).toFixed(1)}°` : NONE;
}

export const degrees = (radians) => (isNumber(radians) ? (radians * 180) / Math.PI : null);

/** Parse a decimal, a fraction or "inf"; null for other text. */
export function decimal(text) {
  if (text === null || text === undefined) return null;
  if (text === "inf") return Infinity;
  const [above, below] = String(text).split("/");
  const value = below === undefined ? Number(above) : Number(above) / Number(below);
  return Number.isNaN(value) ? null : value;
}

/** Return the known parts of a charge: symbol, name, text and number. */
export function chargeParts(charge) {
  const names = [
    ["ε", "epsilon"],
    ["δ", "delta"],
    ["ρ", "rho"],
  ];
  return names
    .filter(([, name]) => charge && charge[name] !== null && charge[name] !== undefined)
    .map(([symbol, name]) => ({ symbol, name, text: charge[name], value: decimal(charge[name]) }));
}

/**
 * Return the parts of the cap, each with its spent share; infinite and unknown ones are left out.
 *
 * With the remainder ``left``, they are its parts: those that the filter adds up.
 */
export function spentParts(spent, cap, left = null) {
  return chargeParts(left ?? cap).map((part) => {
    const used = decimal(spent?.[part.name]);
    const whole = left ? used + part.value : part.value;
    return { ...part, share: used === null || whole === Infinity || whole === 0 ? null : Math.min(used / whole, 1) };
  }).filter((part) => part.share !== null);
}

/** Return the part with the largest share. */
export const largest = (parts) => parts.reduce((most, part) => (most && most.share >= part.share ? most : part), null);

/** Format a charge in one line. */
export function charge(value) {
  const parts = chargeParts(value);
  return parts.length ? parts.map((p) => `${p.symbol} ${number(p.value)}`).join(", ") : NONE;
}

/** Format the time since a moment. */
export function ago(iso, now = Date.now()) {
  const seconds = (Date.parse(iso) - now) / 1000;
  if (Number.isNaN(seconds)) return NONE;
  if (Math.abs(seconds) < 5) return "just now";
  const [unit, size] = STEPS.find(([, s, most]) => Math.round(Math.abs(seconds) / s) < most) ?? STEPS.at(-1);
  return RELATIVE.format(Math.round(seconds / size), unit);
}

/** Format a duration, in its largest unit. */
export function span(seconds) {
  if (seconds < 1.5) return "a second";
  const [unit, size] = STEPS.find(([, s, most]) => Math.round(seconds / s) < most) ?? STEPS.at(-1);
  return many(Math.round(seconds / size), unit);
}

export const clock = (time) => CLOCK.format(time);

export function exact(iso) {
  const time = new Date(iso);
  return Number.isNaN(time.getTime()) ? String(iso) : EXACT.format(time);
}

/** Format a count with its noun. */
export function many(value, one, several = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : several}`;
}
