// Near-duplicates and the map wait for one comparison of all images: start it, show how far it is.

import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { read } from "./route.js";
import { plural } from "./words.js";

const FIRST = 200; // milliseconds until the first look at how far it is; then twice as long, to a second
const LONGEST = 1000;

// A view whose body is made by ready(status) once the comparison is done: { element, update, keys, close }.
export function compared(app, title, ready) {
  const body = h("div", {});
  const element = h("div", {}, title, body);
  let timer = 0;
  let wait = FIRST;
  let closed = false;
  let view = null;
  let progress = null;

  async function update(values, signal) {
    clearTimeout(timer);
    if (!app.overview.vectors) {
      replace(body, h("p", { class: "state" }, "There are no image vectors here. They come from a component with one vector per image, or from one that is named: shardwright look --component NAME. Identical files have a flag in the grid."));
      return;
    }
    if (!view) await ask({}, signal);
    await view?.update(values, signal);
  }

  async function ask(values, signal) {
    const status = await get("/api/similar", values, signal);
    if (closed) return;
    if (status.state === "working") {
      working(status);
      timer = setTimeout(() => attempt({}), wait);
      wait = Math.min(LONGEST, 2 * wait);
      return;
    }
    progress = null;
    if (status.state === "ready") {
      await app.refresh(signal); // there are new flags and numbers now
      if (closed) return;
      view = ready(status);
      replace(body, view.element);
    } else replace(body, invitation(status));
  }

  async function attempt(values) {
    if (document.hidden) {
      // Nobody looks: go on when somebody does.
      document.addEventListener("visibilitychange", () => closed || attempt(values), { once: true });
      return;
    }
    try {
      await ask(values);
      if (!closed) await view?.update(read());
    } catch (error) {
      if (!closed) app.fail(error);
    }
  }

  function working(status) {
    if (!progress) {
      progress = { bar: h("progress", { max: 1, "aria-label": "Comparing all images" }), words: h("p", { "aria-live": "polite" }) };
      replace(body, h("div", { class: "state" }, progress.words, progress.bar));
    }
    progress.bar.value = status.done;
    const step = status.message ? `: ${status.message}` : "";
    progress.words.textContent = `Comparing all images${step} (${Math.floor(100 * status.done)} %)`;
  }

  function invitation(status) {
    const failed = status.state === "failed";
    const start = (event) => {
      event.target.disabled = true;
      attempt({ start: 1 });
    };
    return h("div", { class: "state" },
      failed && h("p", { role: "alert" }, `The comparison failed: ${status.message}`),
      h("p", {}, `First, ${plural(app.overview.samples, "sample")} are compared by their ${app.overview.vectors} vectors. Nothing is written or deleted.`),
      h("button", { type: "button", class: "main", onclick: start }, failed ? "Try again" : "Compare all images"));
  }

  function close() {
    closed = true;
    clearTimeout(timer);
    view?.close();
  }

  return { element, update, keys: (event) => view?.keys?.(event), close };
}
