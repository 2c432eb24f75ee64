// List of a stream's releases with downloads, and sample code for one.

import { h, show } from "./dom.js";
import { angle, count, exact, many, share } from "./format.js";
import * as components from "./components.js";
import { download, get } from "./server.js";

const PAGE = 10;
const safe = (name) => name.replace(/[^A-Za-z0-9._-]/g, "_");
/** Quote a name as a Python string: JSON's escapes are valid in Python. */
const quoted = (name) => JSON.stringify(name).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function releases(name, path) {
  const place = h("div", { class: "stack" });
  const latest = h("div", {});
  const element = h("details", { class: "card fold", "data-fold": "releases" }, h("summary", {}, h("h2", {}, "Releases, newest first")), place);
  const use = h("section", { class: "card", "aria-labelledby": "use-title", "data-part": "use" }, h("h2", { id: "use-title" }, "Use the last release"), latest, snippets(name));
  const state = { items: [], next: null, paged: false, unread: null };

  const save = (batch, format) => async () => {
    const suffix = format === "npz" ? "?format=npz" : "";
    await download(`${path}/releases/${batch}${suffix}`, `${safe(name)}-${batch}.${format}`);
    return "Saved.";
  };
  const saver = (batch, format, text, label) =>
    h("button", { type: "button", class: "tiny", "data-download": format, "aria-label": label, on: { click: async (event) => {
      const button = event.currentTarget;
      try {
        await save(batch, format)();
      } catch (error) {
        button.after(h("span", { role: "alert", class: "small" }, ` ${error.message}`));
      }
    } } }, text);

  const savers = (r) => h("span", { class: "row" }, saver(r.batch, "json", "JSON", `JSON of batch ${r.batch}`), saver(r.batch, "npz", "npz", `npz of batch ${r.batch}`));

  function paint() {
    const [newest] = state.items;
    show(latest, newest ? h("div", { class: "row", "data-key": newest.batch, "data-batch": newest.batch }, `Download batch ${count(newest.batch)}:`, savers(newest))
      : h("p", { class: "faint" }, state.unread ? `${state.unread}.` : "Downloads appear with the first release."));
    if (!state.items.length) {
      show(place, state.unread ? components.empty(`${state.unread}.`) : components.empty("No release yet.", "The first appears here when the first batch is processed and published."));
      return;
    }
    const table = components.table("List of releases", [
      { title: "Batch", cell: (r) => count(r.batch) },
      { title: "Released", cell: (r) => h("time", { datetime: r.created }, exact(r.created)) },
      { title: "Records so far", number: true, cell: (r) => count(r.records) },
      { title: "Explained", number: true, cell: (r) => share(r.explained_share) },
      { title: "Angle", number: true, cell: (r) => angle(r.angle) },
      { title: "Doubts", cell: (r) => (r.doubts.length ? h("span", { title: r.doubts.join("\n") }, many(r.doubts.length, "doubt")) : "none") },
      { title: "Download", cell: savers },
    ], state.items, { hidden: true, kind: "cards", row: (r) => ({ "data-key": r.batch, "data-batch": r.batch }) });
    const more = state.next === null ? null : h("div", { class: "row", "data-key": "more" }, components.action("Earlier releases", earlier, {}));
    show(place, table, more);
  }

  async function earlier() {
    const found = await get(`${path}/releases?limit=${5 * PAGE}&before=${state.next}`);
    state.items.push(...found.items);
    state.next = found.next;
    state.paged = true;
    paint();
    return `${many(found.items.length, "more release")} shown.`;
  }

  return {
    element,
    use,
    /** Add new releases at the top; keep the older pages already loaded. Show ``unread`` if no release is known. */
    async renew(signal, unread) {
      try {
        state.unread = unread;
        const found = unread ? { items: [], next: null } : await get(`${path}/releases?limit=${PAGE}`, { signal });
        const newest = new Set(found.items.map((r) => r.batch));
        const oldest = Math.min(...newest);
        const rest = state.items.filter((r) => r.batch < oldest);
        // Without an overlap, releases between the two lists would be missing.
        const joined = state.paged && state.items.some((r) => newest.has(r.batch));
        state.items = joined ? [...found.items, ...rest] : found.items;
        if (!joined) {
          state.next = found.next;
          state.paged = false;
        }
        paint();
      } catch (error) {
        if (!signal.aborted) show(place, components.trouble(error.message));
      }
    },
  };
}

/** Last lines of both samples. */
const PROJECT = [
  "# Your own rows, in the stream's units; FeatureMap.from_toml(FILE, scale=False) makes them of records with fields.",
  "X = np.zeros((1, release.dim))",
  "print(release.transform(X))",
];

/** Sample code that projects the user's data, with a release from a file or the broker. */
function snippets(name) {
  const file = [
    "from pathlib import Path",
    "",
    "import numpy as np",
    "",
    "from streaming_pca.data.release import Release",
    "",
    "# The release that was downloaded last.",
    `path = max(Path().glob(${quoted(`${safe(name)}-*.json`)}), key=lambda path: path.stat().st_mtime)`,
    "release = Release.from_bytes(path.read_bytes())",
    ...PROJECT,
  ].join("\n");
  const broker = [
    "import numpy as np",
    "",
    "from streaming_pca.client import latest",
    "",
    `release = latest(${quoted(name)}, "localhost:9092")  # the broker's address`,
    ...PROJECT,
  ].join("\n");
  const panel = (code) => h("div", { class: "stack" }, h("pre", { "data-snippet": "python", tabindex: "0", role: "region", "aria-label": "Python code" }, h("code", {}, code)),
    h("div", { class: "row" }, components.action("Copy", async () => {
      await navigator.clipboard.writeText(code);
      return "Copied.";
    }, {})));
  return h("details", { "data-fold": "code" }, h("summary", {}, "Python code that projects your own data"),
    components.tabs("Where the release comes from", [
      { id: "file", title: "From a downloaded file", panel: panel(file) },
      { id: "kafka", title: "From Kafka", panel: panel(broker) },
    ]),
    h("p", { class: "small faint prose" }, "Coordinates of raw records are as private as the records: they are not covered by the guarantee."));
}
