// Runs before the first paint and the modules: sets the theme and requests the page's numbers.
"use strict";
(() => {
  const root = document.documentElement;
  const kept = (store, name) => {
    try {
      return window[store].getItem(`streaming-pca-${name}`);
    } catch {
      // Storage may be forbidden: then no choice is stored.
      return null;
    }
  };
  const chosen = kept("localStorage", "theme");
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const known = chosen === "light" || chosen === "dark";
  root.dataset.theme = known ? chosen : dark ? "dark" : "light";
  root.dataset.themeChoice = known ? chosen : "system";

  // The response arrives while the modules load; server.js uses it.
  const base = new URL(root.dataset.root, location.href);
  const [, stream] = /^streams\/([^/]+)$/.exec(location.pathname.slice(base.pathname.length)) ?? [];
  const path = location.pathname === base.pathname ? "v1/streams?limit=200" : stream ? `v1/streams/${stream}` : null;
  if (!path) return;
  // The shell lists the modules that every page needs; these belong to this page only.
  const figures = ["charts", "figure", "labels", "plots", "series", "timeline"].map((name) => `../figures/${name}`);
  for (const name of stream ? ["stream", "releases", ...figures] : []) {
    const link = document.createElement("link");
    link.rel = "modulepreload";
    link.href = new URL(`${name}.js`, document.currentScript.src).href;
    document.head.append(link);
  }
  const token = kept("sessionStorage", "token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = fetch(new URL(path, base), { headers, cache: "no-store", credentials: "same-origin" });
  // server.js handles a failure.
  response.catch(() => {});
  window.early = { path, response };
})();
