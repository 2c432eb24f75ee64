// Elements built from data. Text is inserted as text: names of streams and features are never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/** Make an HTML element; children are nodes or text. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make an SVG element. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Make an element that shows a value of the API, identified by its field. */
export function field(name, value, shown, attributes) {
  return h("span", { "data-field": name, "data-value": value ?? "", ...attributes }, shown);
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);

function alike(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

/** Make ``old`` equal to ``fresh`` but keep its nodes, to preserve focus, selection and scrolling. */
export function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.hasAttribute("data-keep")) return;
  for (const { name } of [...old.attributes]) {
    // The user controls which details are open.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const keyed = new Map();
  for (const child of old.childNodes) if (keyOf(child) !== null) keyed.set(keyOf(child), child);
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const held = keyOf(child) === null ? next : keyed.get(keyOf(child));
    if (held && alike(held, child)) {
      if (held === next) next = next.nextSibling;
      else old.insertBefore(held, next);
      morph(held, child);
    } else {
      old.insertBefore(child, next);
    }
  }
  while (next) {
    const after = next.nextSibling;
    next.remove();
    next = after;
  }
}

/** Show ``content`` in ``place``, with minimal changes. */
export function show(place, ...content) {
  const fresh = place.cloneNode(false);
  fresh.append(...content.flat(Infinity).filter(Boolean));
  morph(place, fresh);
}

/** Announce a text to screen readers. */
export function announce(text) {
  document.querySelector("[data-announce]").textContent = text;
}
