// Runs before the first paint, and before the modules: sets the theme and asks for the page's numbers.
"use strict";
(() => {
  const root = document.documentElement;
  const kept = (store, name) => {
    try {
      return window[store].getItem(`streaming-pca-${name}`);
    } catch {
      // Storage may be forbidden: then nothing is kept.
      return null;
    }
  };
  const chosen = kept("localStorage", "theme");
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const known = chosen === "light" || chosen === "dark";
  root.dataset.theme = known ? chosen : dark ? "dark" : "light";
  root.dataset.themeChoice = known ? chosen : "system";

  // server.js takes the answer; it travels while the modules load.
  const base = new URL(root.dataset.root, location.href);
  const [, stream] = /^streams\/([^/]+)$/.exec(location.pathname.slice(base.pathname.length)) ?? [];
  const path = location.pathname === base.pathname ? "v1/streams?limit=200" : stream ? `v1/streams/${stream}` : null;
  if (!path) return;
  // The shell names the modules of every page; these are this page's own.
  for (const name of stream ? ["stream", "figures", "plots", "releases"] : []) {
    const link = document.createElement("link");
    link.rel = "modulepreload";
    link.href = new URL(`${name}.js`, document.currentScript.src).href;
    document.head.append(link);
  }
  const token = kept("sessionStorage", "token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = fetch(new URL(path, base), { headers, cache: "no-store", credentials: "same-origin" });
  // Whoever takes it handles the failure.
  response.catch(() => {});
  window.early = { path, response };
})();
