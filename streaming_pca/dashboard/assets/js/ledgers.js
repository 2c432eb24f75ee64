// Page of all ledgers.

import { field, h, show } from "./dom.js";
import { count, many } from "./format.js";
import * as components from "./components.js";
import { get, ROOT } from "./server.js";

const RULES = { basic: "Sums of ε and of δ", zcdp: "Sums of ρ (zCDP)" };

/** Rule for adding charges, in words. */
export const rule = (filter) => RULES[filter] ?? filter;

const columns = (connection) => [
  { title: "Topic", cell: (l) => components.link(ROOT, components.ledgerPath(l.input), l.input, { class: "name" }) },
  { title: "Largest charge of a record", cell: (l) => (l.problem ? components.trouble(l.problem) : l.cap ? components.chargeFields("most_charged", l.most_charged) : h("span", { class: "faint" }, components.unread(l, connection) ?? "Not open")) },
  { title: "Cap", cell: (l) => (l.cap ? components.chargeFields("cap", l.cap) : null) },
  { title: "Charges add up by", cell: (l) => (l.filter ? field("filter", l.filter, rule(l.filter)) : null) },
  { title: "Jobs", number: true, cell: (l) => field("jobs", l.jobs.length, count(l.jobs.length)) },
  { title: "Entries", number: true, cell: (l) => field("entries", l.entries, count(l.entries)) },
];

export function open(main) {
  const totals = h("p", { class: "lead" });
  const list = h("div", { class: "list" });
  main.replaceChildren(h("div", { class: "title" }, h("h1", {}, "Ledgers"), totals), list);
  return {
    title: "Ledgers",
    wants: (event) => event.kind === "ledger",
    async refresh(signal) {
      const { items, connection } = await get("v1/ledger", { signal });
      show(totals, h("span", {}, many(items.length, "input topic")));
      if (items.length) {
        show(list, components.table("Ledgers by input topic", columns(connection), items, { hidden: true, kind: "cards ledgers", row: (l) => ({ "data-ledger": l.input, "data-key": l.input }) }));
      } else {
        show(list, connection.loaded || connection.ok
          ? components.empty("No ledger is configured here yet.", "Each input topic of a stream has one: give a stream's settings with --config, then start this dashboard again.")
          : components.empty("The broker has not answered yet.", "Ledgers appear as soon as their topics can be read."));
      }
      return connection;
    },
    close() {},
  };
}
