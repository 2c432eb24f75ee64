// Entry point of the dashboard: routes, fresh numbers, banner, theme.

import { announce, h } from "./dom.js";
import { clock, exact } from "./format.js";
import { Feed } from "./live.js";
import { link, renewTimes } from "./components.js";
import { ROOT, ServerAway, ServerError } from "./server.js";
import * as streams from "./streams.js";

const STATES = { events: "Live", polling: "Every 5 s", off: "Not connected", stale: "Not updated" };
const THEMES = ["system", "light", "dark"];
const SETTLE_MS = 150;
/** Shortest time between two announcements of releases to a screen reader. */
const QUIET_MS = 10000;
const NAME = "streaming_pca";
const root = document.documentElement;
const main = document.getElementById("main");
const banner = document.querySelector("[data-banner]");

let page = null;
let control = new AbortController();
let running = null;
let again = false;
let settling = null;
let announced = 0;
let shownAt = null;
let painted = false;
let stale = false;

const ROUTES = [
  [/^$/, "streams", async () => streams],
  [/^streams\/([^/]+)$/, "streams", () => import("./stream.js")],
  [/^ledger$/, "ledger", () => import("./ledgers.js")],
  [/^ledger\/([^/]+)$/, "ledger", () => import("./ledger.js")],
  [/^plan$/, "plan", () => import("./plan.js")],
];

function routeOf(url) {
  if (!url.pathname.startsWith(ROOT.pathname)) return null;
  const path = url.pathname.slice(ROOT.pathname.length);
  for (const [pattern, tab, load] of ROUTES) {
    const match = pattern.exec(path);
    if (match) return { tab, load, name: match[1] === undefined ? null : decoded(match[1]) };
  }
  return null;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function go(first = false) {
  const route = routeOf(new URL(location.href));
  page?.close();
  control.abort();
  control = new AbortController();
  page = null;
  running = null;
  const own = control;
  if (!route) {
    showNothing("No such page", `Nothing is at ${location.pathname}. `, ...pages("The pages are "));
    return;
  }
  for (const item of document.querySelectorAll("[data-page]")) {
    if (item.dataset.page === route.tab) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  main.setAttribute("aria-busy", "true");
  // An updated server has other addresses for its modules.
  const module = await route.load().catch(() => null);
  if (own.signal.aborted) return;
  if (!module) {
    showNothing("Page not loaded", "This page could not be loaded. ", h("a", { href: location.href }, "Reload it"), ".");
    return;
  }
  page = module.open(main, route.name, refresh);
  document.title = `${page.title} · ${NAME}`;
  if (!first) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
    announce(`Page: ${page.title}`);
  }
  await refresh();
}

/** Show a text in the place of a page. */
function showNothing(title, ...text) {
  main.replaceChildren(h("h1", {}, title), h("p", { role: "alert" }, ...text));
  document.title = `${title} · ${NAME}`;
  main.setAttribute("aria-busy", "false");
  stale = false;
  showFeed();
  say("");
}

/** Name the pages in a sentence, each with its link. */
function pages(start) {
  const [all, ledger, plan] = [["", "the streams"], ["ledger", "the ledgers"], ["plan", "the plan"]].map(([path, text]) => link(ROOT, path, text));
  return [start, all, ", ", ledger, " and ", plan, "."];
}

/** Fetch the page's numbers again; calls during a fetch together cause one more. */
function refresh() {
  if (!page) return Promise.resolve();
  if (running) {
    again = true;
    return running;
  }
  const mine = round(page, control.signal).finally(() => {
    if (running !== mine) return;
    running = null;
    if (again) {
      again = false;
      refresh();
    }
  });
  running = mine;
  return running;
}

async function round(current, signal) {
  try {
    const connection = await current.refresh(signal);
    if (signal.aborted) return;
    shownAt = new Date();
    feed.answered(true);
    showState(connection);
    main.querySelector(":scope > [data-failed]")?.remove();
  } catch (error) {
    if (signal.aborted) return;
    fail(error);
  }
  main.setAttribute("aria-busy", "false");
  if (painted) return;
  requestAnimationFrame(() => {
    if (painted) return;
    painted = true;
    performance.mark("data-painted");
  });
}

function fail(error) {
  if (error instanceof ServerAway) {
    feed.answered(false);
    say(shownAt ? `The server does not answer. The numbers are from ${clock(shownAt)}. Trying again every 5 seconds.`
      : "The server does not answer. Trying again every 5 seconds.");
    return;
  }
  if (!(error instanceof ServerError)) console.error(error);
  feed.answered(true);
  const text = error instanceof ServerError ? error.message : `This page failed: ${error.message}`;
  const line = h("p", { class: "trouble", "data-problem": "", "data-failed": "", role: "alert" }, text,
    ...(error.status === 404 ? pages(". See ") : []));
  const old = main.querySelector(":scope > [data-failed]");
  if (old) {
    if (old.textContent !== line.textContent) old.replaceWith(line);
  } else {
    main.querySelector("[data-loading]")?.remove();
    main.prepend(line);
  }
}

/** Show the state of the broker and the time of the numbers. */
function showState(connection) {
  document.querySelector("[data-asof]").textContent = connection && !connection.ok ? "" : `Numbers from ${clock(shownAt)}`;
  stale = Boolean(connection && !connection.ok);
  showFeed();
  if (connection && !connection.ok) {
    const problem = connection.problem.replace(/\.$/, "");
    say(`${problem[0].toUpperCase()}${problem.slice(1)}. The numbers are from ${exact(connection.since)} and will be updated once it is back.`);
  } else if (connection && !connection.loaded) {
    say("Topics are still being read: numbers may still grow.");
  } else {
    say("");
  }
}

function say(text) {
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = !text;
}

const feed = new Feed(
  (event) => {
    if (!page || (event && event.kind !== "connection" && !page.wants(event))) return;
    if (event?.kind === "release" && Date.now() - announced > QUIET_MS) {
      announced = Date.now();
      announce(`${event.stream}: release of batch ${event.batch}`);
    }
    // No debouncing: a steady flow of events must not delay the numbers.
    settling ??= setTimeout(() => {
      settling = null;
      refresh();
    }, SETTLE_MS);
  },
  () => showFeed(),
);

/** Show how the numbers are updated, or that the server has no newer ones while its broker is down. */
function showFeed() {
  const state = stale && feed.state !== "off" ? "stale" : feed.state;
  root.dataset.live = state;
  document.querySelector("[data-feed-text]").textContent = STATES[state];
}

function setTheme(choice) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.themeChoice = choice;
  root.dataset.theme = choice === "system" ? (dark ? "dark" : "light") : choice;
  document.querySelector("[data-theme-text]").textContent = choice;
  document.querySelector("[data-action=theme]").setAttribute("aria-label", `Theme: ${choice}`);
  document.dispatchEvent(new Event("theme"));
}

document.querySelector("[data-action=theme]").addEventListener("click", () => {
  const at = THEMES.indexOf(root.dataset.themeChoice);
  // Starting from the system's theme, the first press must change the visible theme.
  const next = root.dataset.themeChoice === "system" ? (root.dataset.theme === "dark" ? "light" : "dark") : THEMES[(at + 1) % THEMES.length];
  try {
    if (next === "system") localStorage.removeItem("streaming-pca-theme");
    else localStorage.setItem("streaming-pca-theme", next);
  } catch {
    // Without storage, the choice applies to this page only.
  }
  setTheme(next);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(root.dataset.themeChoice));

// Paper is light, and shows what is folded. Figures have their own listeners, which are called later.
let unfolded = [];
function toggle(fold) {
  if (fold.localName === "details") fold.open = !fold.open;
  else fold.click();
}

addEventListener("beforeprint", () => {
  root.dataset.theme = "light";
  unfolded = [...main.querySelectorAll("details:not([open], figure *), button[aria-expanded=false]")];
  unfolded.forEach(toggle);
});
addEventListener("afterprint", () => {
  unfolded.forEach(toggle);
  setTheme(root.dataset.themeChoice);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-link]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  if (link.href !== location.href) history.pushState(null, "", link.href);
  go();
});
addEventListener("popstate", () => go());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
setInterval(renewTimes, 10000);

// Make addresses absolute: they are relative to the loaded page, whose address will change.
for (const link of document.querySelectorAll("a[data-link], link[rel=icon]")) link.setAttribute("href", link.href);

setTheme(root.dataset.themeChoice);
go(true).then(() => feed.start());
