// Requests to the API: token, validators, errors in words, downloads.

import { h } from "./dom.js";

/** Address of the dashboard, also under a proxy's prefix. */
export const ROOT = new URL("../../../", import.meta.url);

const KEPT = "streaming-pca-token";
const MOST_HELD = 64;
/** Number of retries for a server with too many requests, and longest wait of each in seconds. */
const MOST_WAITS = 5;
const MOST_SECONDS = 10;
const held = new Map();
let asking = null;

/** Error returned by the server, with its message. */
export class ServerError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Error without a response from the server. */
export class ServerAway extends Error {}

export const address = (path) => new URL(path, ROOT);

export const part = (name) => encodeURIComponent(name);

function token() {
  try {
    return sessionStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

/** Return the response that first.js requested, once. */
function early(path) {
  const known = window.early;
  if (known?.path !== path) return null;
  window.early = null;
  return known.response;
}

async function send(path, options = {}) {
  const headers = new Headers(options.headers);
  const secret = options.token ?? token();
  if (secret) headers.set("Authorization", `Bearer ${secret}`);
  try {
    return await (early(path) ?? fetch(address(path), { ...options, headers, cache: "no-store", credentials: "same-origin" }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerAway("The server does not answer.");
  }
}

/** Send a request; supply a token, or wait and retry, if the server requires it. */
export async function request(path, options = {}) {
  let response = await send(path, options);
  for (let patience = MOST_WAITS; response.status === 401 || (response.status === 429 && patience); ) {
    if (response.status === 429) {
      patience -= 1;
      const seconds = Math.min(Number(response.headers.get("Retry-After")) || 1, MOST_SECONDS);
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      options.signal?.throwIfAborted();
    } else {
      asking ??= askToken().finally(() => {
        asking = null;
      });
      await asking;
    }
    response = await send(path, options);
  }
  if (response.ok || response.status === 304) return response;
  throw new ServerError(response.status, await problem(response));
}

async function problem(response) {
  try {
    const found = await response.json();
    if (typeof found.detail === "string" && found.detail) return found.detail;
  } catch {
    // A proxy's response may not be JSON.
  }
  return `The server answered ${response.status} ${response.statusText}.`;
}

/** Get JSON; unchanged content is not transferred again. */
export async function get(path, options = {}) {
  const known = held.get(path);
  const headers = known ? { "If-None-Match": known.etag } : {};
  const response = await request(path, { ...options, headers });
  if (response.status === 304 && known) return known.value;
  const value = await response.json();
  const etag = response.headers.get("ETag");
  held.delete(path);
  if (etag) held.set(path, { etag, value });
  if (held.size > MOST_HELD) held.delete(held.keys().next().value);
  return value;
}

/** Save a response as a file, by fetch: a link would not send the token. */
export async function download(path, name) {
  const response = await request(path);
  const url = URL.createObjectURL(await response.blob());
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

function askToken() {
  return new Promise((resolve) => {
    const alert = h("p", { role: "alert", class: "wrong" });
    const input = h("input", {
      name: "token",
      id: "token",
      type: "password",
      autocomplete: "off",
      required: true,
      spellcheck: "false",
    });
    const form = h(
      "form",
      { "data-form": "token", class: "stack" },
      h("h2", { id: "token-title" }, "This server asks for a token"),
      h("p", {}, "It is the setting ", h("code", {}, "http.token"), " of the worker or of ",
        h("code", {}, "streaming-pca dashboard"), ". This tab keeps it until it is closed."),
      h("label", { for: "token" }, "Token"),
      input,
      alert,
      h("button", { type: "submit", class: "primary" }, "Show the dashboard"),
    );
    const dialog = h("dialog", { "aria-labelledby": "token-title", class: "card" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      alert.textContent = "";
      const refused = await refusal(input.value.trim());
      if (refused) {
        alert.textContent = refused;
        input.select();
        return;
      }
      dialog.close();
      dialog.remove();
      resolve();
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}

async function refusal(secret) {
  // A header allows printable ASCII only.
  if (!/^[\x21-\x7e]+$/.test(secret)) return "A token has no spaces and no letters outside ASCII.";
  try {
    const response = await send("v1/streams?limit=1", { token: secret });
    if (response.status === 401 || response.status === 403) return "The server does not know this token.";
    if (!response.ok) return await problem(response);
  } catch (error) {
    return error.message;
  }
  try {
    sessionStorage.setItem(KEPT, secret);
  } catch {
    return "The browser does not let this page keep the token: allow session storage.";
  }
  return null;
}
