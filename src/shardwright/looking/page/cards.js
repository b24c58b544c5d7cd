// One sample as a card: for the grid and for groups of near-duplicates.

import { thumb } from "./api.js";
import { outline } from "./charts.js";
import { h, picture } from "./dom.js";
import { sampleHref } from "./route.js";
import { figure, plain } from "./words.js";

// values: the address the card is shown under. sorted: the column to show as a number.
export function card(sample, values, { compare = false, sorted = null, lead = null } = {}) {
  const of = values.of === "latent" ? "latent" : "picture";
  const missing = of === "latent" ? "No latent" : "No picture";
  const box = (side) => h("span", { class: "thumb", "data-of": of },
    picture(thumb(sample.n, of, side), "", missing));
  const there = sample.other === null || sample.other === undefined
    ? h("span", { class: "thumb" }, h("span", { class: "none" }, "Only here"))
    : box("other");
  return h("a", { class: "card", href: sampleHref(sample.n, values), "data-n": sample.n },
    h("span", { class: compare ? "thumbs two" : "thumbs" }, box(), compare && there),
    h("span", { class: "facts" },
      h("span", { class: "bucket" }, outline(sample.bucket), sample.bucket ?? "no bucket", sample.part && ` · ${sample.part}`),
      lead ?? (sorted && h("span", { class: "value", title: sorted.title }, figure(sample.numbers[sorted.name])))),
    h("span", { class: "caption" }, sample.caption || h("span", { class: "none" }, "No caption")),
    h("span", { class: "id mono", title: sample.id }, sample.id),
    badges(sample));
}

export function badges(sample) {
  const failed = sample.state && sample.state !== "ready";
  if (!failed && !sample.flags.length) return null;
  return h("span", { class: "badges" },
    failed && h("span", { class: "badge failed" }, plain(sample.state)),
    sample.flags.map((flag) => h("span", { class: "badge" }, plain(flag))));
}
