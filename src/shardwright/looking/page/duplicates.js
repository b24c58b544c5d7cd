// Near-duplicates and outliers: the server compares all images once, then the threshold moves freely.

import { get } from "./api.js";
import { card } from "./cards.js";
import { histogram } from "./charts.js";
import { debounce, h, replace } from "./dom.js";
import { go, href, read } from "./route.js";
import { count, plural } from "./words.js";

const POLL = 1000;
const STEP = 0.005;

export function duplicates(app) {
  const body = h("div", {});
  const element = h("div", { class: "duplicates" }, h("h1", {}, "Near-duplicates and outliers"), body);
  let timer = 0;
  let closed = false;
  let panel = null; // what is shown once the comparison is ready
  let progress = null;

  async function update(values, signal) {
    clearTimeout(timer);
    if (!app.overview.vectors) {
      replace(body, h("p", { class: "state" }, "There are no image vectors here. Add a component with one vector per image to the recipe to find near-duplicates."));
      return;
    }
    if (!panel) await ask({}, signal);
    if (panel) await panel.update(values, signal);
  }

  async function ask(values, signal) {
    const status = await get("/api/similar", values, signal);
    if (closed) return;
    if (status.state === "ready") {
      await app.refresh(signal); // there are new flags and numbers now
      progress = null;
      panel = results(app, status);
      replace(body, panel.element);
      return;
    }
    if (status.state === "working") {
      working(status);
      timer = setTimeout(poll, POLL);
    } else {
      progress = null;
      replace(body, invitation(status));
    }
  }

  // Nobody looks at a hidden page: wait until it is seen again.
  async function poll() {
    if (document.hidden) {
      document.addEventListener("visibilitychange", poll, { once: true });
      return;
    }
    if (closed) return;
    try {
      await ask({});
      if (panel && !closed) await panel.update(read());
    } catch (error) {
      if (!closed) app.fail(error);
    }
  }

  function working(status) {
    if (!progress) {
      progress = { bar: h("progress", { max: 1, "aria-label": "Comparing images" }), words: h("p", { "aria-live": "polite" }) };
      replace(body, h("div", { class: "state" }, progress.words, progress.bar));
    }
    progress.bar.value = status.done;
    progress.words.textContent = `${status.message || "Comparing images"} (${Math.floor(100 * status.done)} %)`;
  }

  function invitation(status) {
    const start = async (event) => {
      event.target.disabled = true;
      try {
        await ask({ start: 1 });
        if (panel && !closed) await panel.update(read());
      } catch (error) {
        if (!closed) app.fail(error);
      }
    };
    return h("div", { class: "state" },
      status.state === "failed" && h("p", { role: "alert" }, status.message || "The comparison failed."),
      h("p", {}, `Compares ${plural(app.overview.samples, "sample")} by their ${app.overview.vectors} vectors. Nothing is written or deleted.`),
      h("button", { type: "button", class: "main", onclick: start }, status.state === "failed" ? "Try again" : "Compare all images"));
  }

  function close() {
    closed = true;
    clearTimeout(timer);
    panel?.close();
    document.removeEventListener("visibilitychange", poll);
  }

  return { element, update, close };
}

function results(app, status) {
  const chart = histogram({ title: "Similarity to the nearest other image", bins: status.histogram });
  const number = h("output", { for: "threshold" });
  const slider = h("input", { type: "range", id: "threshold", min: status.floor, max: 1, step: STEP });
  const found = h("p", { class: "found", "aria-live": "polite" });
  const groups = h("div", { class: "groups" });
  const pages = h("nav", { class: "pages", "aria-label": "Pages" });
  const settled = debounce(150, () => go({ view: "duplicates", threshold: slider.value }, { replace: true }));

  const show = () => {
    number.textContent = Number(slider.value).toFixed(3);
    chart.mark?.(Number(slider.value));
  };
  slider.addEventListener("input", () => {
    show();
    settled();
  });

  const element = h("div", {},
    status.approximate && h("p", { class: "note" }, `Approximate: with ${plural(status.samples, "sample")}, candidates come from an index. Each shown similarity is exact, but a few pairs may be missing.`),
    h("section", { class: "control" }, chart.element,
      h("div", { class: "slide" }, h("label", { for: "threshold" }, "At least this similar"), slider, number)),
    outliers(app.overview),
    h("section", {}, h("h2", {}, "Groups"), found, groups, pages),
    h("p", { class: "small" }, "Write the groups to a file: ", h("code", {}, `shardwright look ${app.overview.path} --duplicates FILE`), ". Nothing is deleted."));

  async function update(values, signal) {
    const asked = Number(values.threshold) || status.default;
    const threshold = Math.min(1, Math.max(status.floor, asked));
    settled.cancel();
    slider.value = threshold;
    show();
    const page = Math.max(0, Number.parseInt(values.page ?? "0", 10) || 0);
    const answer = await get("/api/groups", { threshold, page }, signal);
    found.textContent = answer.groups
      ? `${plural(answer.groups, "group")} with ${plural(answer.samples, "sample")}` : "No two images are this similar.";
    const shown = { ...values, view: "duplicates", threshold };
    replace(groups, answer.items.map((item) => group(item, shown)));
    const last = Math.ceil(answer.groups / 10) - 1;
    const link = (to, text) => (to < 0 || to > last ? h("span", { class: "off" }, text) : h("a", { href: href({ ...shown, page: to || "" }) }, text));
    replace(pages, last > 0 && [link(page - 1, "← Previous"), h("span", {}, `Page ${count(page + 1)} of ${count(last + 1)}`), link(page + 1, "Next →")]);
  }

  return { element, update, close: settled.cancel };
}

function outliers(overview) {
  const known = overview.columns.some((column) => column.name === "similarity");
  return h("section", {}, h("h2", {}, "Outliers"),
    h("p", {}, "Images that no other image resembles: ",
      h("a", { href: href({ view: "grid", flag: "outlier", ...(known && { sort: "similarity" }) }) }, "show the outliers"),
      known && [", or ", h("a", { href: href({ view: "grid", sort: "similarity" }) }, "all samples, least similar first")], "."));
}

function group(item, values) {
  const more = item.size - item.samples.length;
  return h("section", { class: "group" },
    h("h3", {}, plural(item.size, "sample"), h("span", { class: "muted" }, ` · similarity ${item.similarity.toFixed(3)}`)),
    h("ol", { class: "cards" }, item.samples.map((one) => h("li", {}, card(one, values)))),
    more > 0 && h("p", { class: "small" }, `and ${plural(more, "more sample")}`));
}
