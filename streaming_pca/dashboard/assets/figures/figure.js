// Figures, each with its numbers as a table; plotly is loaded when the first comes into view.

import { h, svg } from "../js/dom.js";
import { table, trouble } from "../js/components.js";
import { shorten } from "./labels.js";

const BUNDLE = new URL("../plotly.min.js", import.meta.url).href;
const SHEET = new URL("../css/plotly.css", import.meta.url).href;
const QUIET = { displayModeBar: false, responsive: false, showTips: false, doubleClick: "reset" };
/** Pixels below which a drawing would have no room beside its labels: a page may have no width for a moment. */
const LEAST_WIDTH = 120;
const MOST_ROWS = 1000;
/** Rows of a table up to which it is printed without being open. */
const PRINTED_ROWS = 30;
/** Printed figures: pixels that fit A4 and Letter, and most rows of a heat map on a page. */
const PRINTED = { width: 640, em: 12.8, rows: 34 };
const PRINTED_HEIGHT = 320;
const PRINTED_REM = 16;
const pen = document.createElement("canvas").getContext("2d");
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
        // Figures out of view load their data, which printing needs.
        document.dispatchEvent(new Event("plotly"));
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

/** Escape characters that plotly would read as markup; shorten long names. */
export function plain(text) {
  return shorten(text, 60).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Colours of the theme in plotly's format. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["ink", "faint", "line", "card", "blue", "orange", "green", "yellow", "purple", "heat-low", "heat-mid", "heat-high"];
  return Object.fromEntries(names.map((name) => [name, of(name)]));
}

/** Complete the sizes of a drawing: its letters in pixels, and a function that measures texts in them. */
function roomOf({ em = 0.8 * parseFloat(getComputedStyle(document.documentElement).fontSize), ...sizes }) {
  const font = `${em}px ${getComputedStyle(document.body).fontFamily}`;
  const measure = (text) => {
    pen.font = font;
    return pen.measureText(text).width;
  };
  return { em, measure, ...sizes };
}

function frame(colours, layout, { width, height, em }) {
  const axis = { gridcolor: colours.line, linecolor: colours.line, zerolinecolor: colours.line, tickcolor: colours.line, automargin: true, fixedrange: true };
  const { xaxis, yaxis, ...rest } = layout;
  const titled = ({ title, ...more }) => ({ ...axis, ...more, title: { ...title, font: { size: em } } });
  return {
    width, height, autosize: false, showlegend: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: em, color: colours.ink },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 48, r: 12, t: 10, b: 44 },
    hoverlabel: { bgcolor: colours.card, bordercolor: colours.faint, font: { color: colours.ink }, align: "left" },
    dragmode: false,
    xaxis: titled(xaxis),
    yaxis: titled(yaxis),
    ...rest,
  };
}

/** Key of a figure: names of its traces with their colours; plotly's own takes room from narrow figures. */
function key(traces) {
  return traces.filter(({ name }) => name).map(({ name, line, marker, mode }) => h("li", {},
    svg("svg", { viewBox: "0 0 16 8", "aria-hidden": "true" }, mode === "markers"
      ? svg("path", { d: marker.symbol === "circle" ? "M4 4a4 4 0 1 0 8 0a4 4 0 1 0-8 0" : "M8 0l4 4l-4 4l-4-4z", fill: marker.color })
      : svg("path", { d: "M0 4h16", stroke: line.color, "stroke-width": line.width + 1, "stroke-dasharray": line.dash ? "4 2" : null })), name));
}

/**
 * Make a figure. ``load()`` returns its data. ``build(data, colours, room)`` returns its traces, layout,
 * summary, note, height, and columns and rows of numbers, or ``{empty}``, a text for a figure without data.
 * ``room`` has the width and height of the drawing and of its letters (em), all in pixels.
 */
export function figure({ id, title, caption, load, build, control = null }) {
  const summary = h("p", { class: "unseen" });
  const canvas = h("div", { class: "canvas" });
  const plot = h("div", { class: "plot" }, h("p", {}, "The figure loads when it comes into view."));
  const note = h("span", {});
  const names = h("ul", { class: "keys" });
  const numbers = h("div", {});
  const details = h("details", {}, h("summary", {}, "Show numbers"), numbers);
  details.hidden = true;
  const element = h("figure", { class: "figure card", "data-plot": id, "aria-labelledby": `plot-${id}` },
    h("div", { class: "head" }, h("h2", { id: `plot-${id}` }, title), control ?? names), summary, plot,
    h("figcaption", {}, caption, " ", note), details);
  let visible = false;
  let stale = true;
  let drawing = null;
  let data = null;
  let built = null;
  let width = 0;
  let unfolded = false;

  const wide = () => plot.clientWidth >= LEAST_WIDTH;

  const say = (...content) => {
    if (canvas.isConnected) window.Plotly?.purge(canvas);
    plot.replaceChildren(...content);
  };

  function list() {
    if (!details.open || !built?.rows) return;
    numbers.replaceChildren(table(`${title}: numbers`, built.columns, built.rows().slice(-MOST_ROWS), { hidden: true }));
  }

  /** Build the contents, and return whether there is a drawing. */
  function prepare(room) {
    built = build(data, palette(), room);
    details.hidden = !built.rows;
    summary.textContent = built.summary ?? built.empty;
    note.textContent = built.note ?? "";
    names.replaceChildren(...key(built.traces ?? []));
    list();
    plot.style.height = built.height ? `${built.height}rem` : "";
    if (!built.empty) return true;
    plot.removeAttribute("aria-hidden");
    say(h("p", {}, built.empty));
    element.dataset.state = "empty";
    return false;
  }

  /** Draw what is built; plotly's part is synchronous, as printing needs. */
  function paint(room) {
    if (!canvas.isConnected) plot.replaceChildren(canvas);
    plot.setAttribute("aria-hidden", "true");
    const drawn = window.Plotly.react(canvas, built.traces, frame(palette(), built.layout, room), QUIET);
    element.dataset.state = "drawn";
    return drawn;
  }

  async function draw() {
    data = await load();
    if (!visible || !wide()) {
      stale = true;
      return;
    }
    // An empty figure is low: a drawing gets the full height first.
    delete element.dataset.state;
    width = plot.clientWidth;
    const room = roomOf({ width, height: plot.clientHeight });
    if (!prepare(room)) return;
    await plotly();
    if (element.isConnected) await paint({ ...room, height: plot.clientHeight });
  }

  function redraw() {
    stale = true;
    if (drawing) return;
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
        if (!visible || !wide()) break;
      }
      drawing = null;
    })();
  }

  /** Draw for paper, also what has not been in view. */
  function print() {
    const room = roomOf({ ...PRINTED, height: Math.min(plot.clientHeight, PRINTED_HEIGHT) });
    if (!data || !window.Plotly || !prepare(room)) return;
    paint(built.height ? { ...room, height: PRINTED_REM * built.height } : room);
    // A long table is printed if the reader has opened it.
    unfolded = !details.open && built.rows().length <= PRINTED_ROWS;
    details.open ||= unfolded;
    list();
  }

  function printed() {
    if (unfolded) details.open = unfolded = false;
    redraw();
  }

  const renew = () => {
    if (stale && (visible || window.Plotly)) redraw();
  };

  details.addEventListener("toggle", list);
  const seen = new IntersectionObserver((entries) => {
    visible = entries.at(-1).isIntersecting;
    renew();
  }, { rootMargin: "100px" });
  seen.observe(element);
  const resized = new ResizeObserver(() => {
    if (!wide()) return;
    if (width && Math.abs(plot.clientWidth - width) > 1) redraw();
    else renew();
  });
  resized.observe(plot);
  const events = [[document, "theme", redraw], [document, "plotly", renew], [window, "beforeprint", print], [window, "afterprint", printed]];
  for (const [target, name, listener] of events) target.addEventListener(name, listener);
  return {
    element,
    redraw,
    close() {
      seen.disconnect();
      resized.disconnect();
      for (const [target, name, listener] of events) target.removeEventListener(name, listener);
      if (canvas.isConnected) window.Plotly?.purge(canvas);
    },
  };
}
