// Near-duplicates and outliers: the threshold moves freely over what the comparison found.

import { get } from "./api.js";
import { card } from "./cards.js";
import { histogram } from "./charts.js";
import { compared } from "./comparing.js";
import { debounce, h, replace } from "./dom.js";
import { go, href } from "./route.js";
import { count, plural } from "./words.js";

const STEP = 0.005;
const GROUPS = 10; // on a page of the server

export function duplicates(app) {
  const view = compared(app, h("h1", {}, "Near-duplicates and outliers"), (status) => results(app, status));
  view.element.className = "duplicates";
  return view;
}

function results(app, status) {
  const chart = histogram({ title: "Images by the similarity to their nearest", bins: status.histogram, unit: "image" });
  const number = h("output", { for: "threshold" });
  const slider = h("input", { type: "range", id: "threshold", min: status.floor, max: 1, step: STEP });
  const found = h("p", { class: "found", "aria-live": "polite" });
  const groups = h("div", { class: "groups" });
  const pages = h("nav", { class: "pages", "aria-label": "Pages" });
  const command = h("code", {});
  const settled = debounce(150, () => go({ view: "duplicates", threshold: slider.value }, { replace: true }));

  const show = () => {
    number.textContent = Number(slider.value).toFixed(3);
    chart.mark?.(Number(slider.value));
    const named = app.overview.component ? ` --component ${app.overview.component}` : "";
    command.textContent = `shardwright look ${app.overview.path} --duplicates FILE.jsonl --threshold ${slider.value}${named}`;
  };
  slider.addEventListener("input", () => {
    show();
    settled();
  });

  const element = h("div", {},
    status.approximate && h("p", { class: "note" }, `Approximate: ${plural(status.samples, "sample")} are too many to compare each with all. The similarities shown are exact, but a few pairs may be missing.`),
    h("section", { class: "control" }, chart.element,
      h("div", { class: "slide" }, h("label", { for: "threshold" }, "At least this similar"), slider, number)),
    outliers(),
    h("section", {}, h("h2", {}, "Groups"), found,
      h("p", { class: "small" }, "To list them in a file: ", command, ". Nothing is deleted."), groups, pages));

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
    const last = Math.ceil(answer.groups / GROUPS) - 1;
    const link = (to, text) => (to < 0 || to > last ? h("span", { class: "off" }, text) : h("a", { href: href({ ...shown, page: to || "" }) }, text));
    replace(pages, last > 0 && [link(page - 1, "← Previous"), h("span", {}, `Page ${count(page + 1)} of ${count(last + 1)}`), link(page + 1, "Next →")]);
  }

  return { element, update, close: settled.cancel };
}

function outliers() {
  const sorted = { view: "grid", sort: "nearest_similarity" };
  return h("section", {}, h("h2", {}, "Outliers"),
    h("p", {}, "Images that no other image resembles: ",
      h("a", { href: href({ ...sorted, flag: "outlier" }) }, "show the outliers"), ", or ",
      h("a", { href: href(sorted) }, "all samples, the least similar first"), "."));
}

function group(item, values) {
  const more = item.size - item.samples.length;
  return h("section", { class: "group" },
    h("h3", {}, plural(item.size, "sample"), h("span", { class: "muted" }, ` · each at least ${item.similarity.toFixed(3)} similar to another of them`)),
    h("ol", { class: "cards" }, item.samples.map((one) => h("li", {}, card(one, values)))),
    more > 0 && h("p", { class: "small" }, `and ${plural(more, "more sample")}`));
}
