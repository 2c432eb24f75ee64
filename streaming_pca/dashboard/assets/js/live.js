// Events of the server: its event stream, and polling while the stream fails.

import { request } from "./server.js";

const POLL_MS = 5000;
const REFRESH_MS = 30000;
const SILENCE_MS = 45000;
const LONGEST_WAIT_MS = 30000;

/** Feed of a page. ``onNews(event | null)`` requests fresh numbers; ``onState(state)`` receives the mode. */
export class Feed {
  constructor(onNews, onState) {
    this.onNews = onNews;
    this.onState = onState;
    this.state = "off";
    this.polling = new URLSearchParams(location.search).get("live") === "poll";
    this.waited = 0;
  }

  start() {
    if (this.polling) this.set("polling");
    else this.follow();
    this.tick();
  }

  set(state) {
    if (state === this.state) return;
    this.state = state;
    this.onState(state);
  }

  /** Note whether the last request was answered. */
  answered(ok) {
    if (!ok) this.set("off");
    else if (this.state === "off") this.set("polling");
  }

  tick() {
    const wait = this.state === "events" ? REFRESH_MS : POLL_MS;
    setTimeout(() => {
      if (!document.hidden) this.onNews(null);
      this.tick();
    }, wait);
  }

  async follow() {
    for (;;) {
      try {
        await this.read();
      } catch {
        // After any error, continue polling and retry the stream.
      }
      if (this.state === "events") {
        this.set("polling");
        this.onNews(null);
      }
      this.waited = Math.min(LONGEST_WAIT_MS, Math.max(1000, 2 * this.waited));
      // Random, so that pages that lost the same server do not reconnect together.
      await new Promise((go) => setTimeout(go, this.waited * (0.75 + Math.random() / 2)));
    }
  }

  async read() {
    const control = new AbortController();
    let silence = setTimeout(() => control.abort(), SILENCE_MS);
    try {
      const response = await request("v1/events", {
        signal: control.signal,
        headers: { Accept: "text/event-stream" },
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      this.set("events");
      // Fetch changes between the first numbers and the stream's start.
      this.onNews(null);
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        this.waited = 0;
        clearTimeout(silence);
        silence = setTimeout(() => control.abort(), SILENCE_MS);
        const blocks = (rest + value.replaceAll("\r", "")).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) this.take(block);
      }
    } finally {
      clearTimeout(silence);
      control.abort();
    }
  }

  take(block) {
    const lines = block.split("\n").filter((line) => line.startsWith("data:"));
    if (!lines.length) return;
    try {
      this.onNews(JSON.parse(lines.map((line) => line.slice(5).trimStart()).join("\n")));
    } catch {
      this.onNews(null);
    }
  }
}
