// Figures, each with its numbers as a table; plotly is loaded when the first comes into view.

import { h } from "./dom.js";
import { table, trouble } from "./components.js";

const BUNDLE = new URL("../plotly.min.js", import.meta.url).href;
const SHEET = new URL("../css/plotly.css", import.meta.url).href;
const QUIET = { displayModeBar: false, responsive: true, showTips: false, doubleClick: "reset" };
const MOST_ROWS = 1000;
let bundle = null;

/** Load plotly once, after the page has been painted. */
function plotly() {
  bundle ??= new Promise((resolve, reject) => {
    const start = async () => {
      await sheet();
      const restore = obeyPolicy();
      const script = h("script", { src: BUNDLE });
      script.addEventListener("load", () => {
        restore();
        resolve(window.Plotly);
      });
      script.addEventListener("error", () => {
        restore();
        script.remove();
        bundle = null;
        reject(new Error("The figures' program could not be loaded."));
      });
      document.head.append(script);
    };
    if (window.requestIdleCallback) requestIdleCallback(start, { timeout: 400 });
    else setTimeout(start, 50);
  });
  return bundle;
}

/** Add the style sheet that plotly fills and finds by its id. */
function sheet() {
  return new Promise((resolve) => {
    const link = h("link", { rel: "stylesheet", href: SHEET, id: "plotly.js-style-global" });
    for (const event of ["load", "error"]) link.addEventListener(event, resolve);
    document.head.append(link);
  });
}

/**
 * Make plotly obey "style-src 'self'".
 *
 * Its rules go into css/plotly.css, whose link has the id that plotly looks for. The policy forbids
 * style attributes set as text, but allows the same declarations through the style object. Plotly also
 * injects a sheet for maps, unless an element has that sheet's id, a digest: no figure here needs it.
 */
function obeyPolicy() {
  const { setAttribute } = Element.prototype;
  Element.prototype.setAttribute = function set(name, value) {
    if (name === "style" && this.style) this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };
  const found = (id) => Document.prototype.getElementById.call(document, id);
  document.getElementById = (id) => (/^[0-9a-f]{64}$/.test(id) ? document.documentElement : found(id));
  return () => {
    delete document.getElementById;
  };
}

/** Escape characters that plotly would read as markup; truncate long names. */
export function plain(text, most = 28) {
  const cut = text.length > most ? `${text.slice(0, most - 1)}…` : text;
  return cut.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Colours of the theme in plotly's format. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["ink", "faint", "line", "card", "blue", "orange", "green", "yellow", "purple", "heat-low", "heat-mid", "heat-high"];
  return Object.fromEntries(names.map((name) => [name, of(name)]));
}

function frame(colours, layout) {
  const axis = { gridcolor: colours.line, linecolor: colours.line, zerolinecolor: colours.line, tickcolor: colours.line, automargin: true, fixedrange: true };
  const { xaxis, yaxis, ...rest } = layout;
  const size = parseFloat(getComputedStyle(document.documentElement).fontSize) * 0.8;
  return {
    font: { family: getComputedStyle(document.body).fontFamily, size, color: colours.ink },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 16, t: 12, b: 48 },
    hoverlabel: { bgcolor: colours.card, bordercolor: colours.faint, font: { color: colours.ink } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left", itemclick: false, itemdoubleclick: false },
    dragmode: false,
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
    ...rest,
  };
}

/**
 * Make a figure. ``load()`` returns its data; ``build(data, colours)`` returns its traces, layout,
 * summary, and columns and rows of numbers, or ``{empty}``, a text for a figure without data.
 */
export function figure({ id, title, caption, tall = false, load, build, height, control = null }) {
  const summary = h("p", { class: "unseen" });
  const canvas = h("div", { class: "canvas" });
  const message = h("p", {}, "The figure loads when it comes into view.");
  const plot = h("div", { class: tall ? "plot tall" : "plot" }, message);
  const numbers = h("div", {});
  const details = h("details", {}, h("summary", {}, "Show numbers"), numbers);
  details.hidden = true;
  const element = h("figure", { class: "figure card", "data-plot": id, "aria-labelledby": `plot-${id}` },
    h("div", { class: "head" }, h("h2", { id: `plot-${id}` }, title), control), summary, plot,
    h("figcaption", {}, caption), details);
  let visible = false;
  let stale = true;
  let drawing = null;
  let built = null;

  const say = (...content) => {
    if (canvas.isConnected) window.Plotly?.purge(canvas);
    plot.replaceChildren(...content);
  };

  function list() {
    if (!details.open || !built?.rows) return;
    const rows = built.rows();
    const kept = rows.slice(-MOST_ROWS);
    numbers.replaceChildren(table(`${title}: numbers`, built.columns, kept, { hidden: true }));
  }

  async function draw() {
    const data = await load();
    built = build(data, palette());
    details.hidden = !built.rows;
    summary.textContent = built.summary ?? built.empty;
    list();
    if (built.empty) {
      say(h("p", {}, built.empty));
      element.dataset.state = "empty";
      return;
    }
    const Plotly = await plotly();
    if (!element.isConnected) return;
    if (height) plot.style.height = height(built);
    if (!canvas.isConnected) plot.replaceChildren(canvas);
    plot.setAttribute("aria-hidden", "true");
    await Plotly.react(canvas, built.traces, frame(palette(), built.layout), QUIET);
    element.dataset.state = "drawn";
  }

  function redraw() {
    stale = true;
    if (!visible || drawing) return;
    drawing = (async () => {
      while (stale && element.isConnected) {
        stale = false;
        try {
          await draw();
        } catch (error) {
          element.dataset.state = "failed";
          plot.removeAttribute("aria-hidden");
          say(trouble(error.message));
        }
      }
      drawing = null;
    })();
  }

  details.addEventListener("toggle", list);
  const seen = new IntersectionObserver((entries) => {
    visible = entries.at(-1).isIntersecting;
    if (visible && stale) redraw();
  }, { rootMargin: "100px" });
  seen.observe(element);
  document.addEventListener("theme", redraw);
  return {
    element,
    redraw,
    close() {
      seen.disconnect();
      document.removeEventListener("theme", redraw);
      if (canvas.isConnected) window.Plotly?.purge(canvas);
    },
  };
}
