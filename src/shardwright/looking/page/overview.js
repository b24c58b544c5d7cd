// What the data is: how much there is, what needs attention, and how it was made.

import { get } from "./api.js";
import { histogram, meter, outline } from "./charts.js";
import { h, replace, tree } from "./dom.js";
import { href } from "./route.js";
import { bytes, count, plain, plural, shape } from "./words.js";

export function overview(app) {
  const element = h("div", { class: "overview" });

  function update(values, signal) {
    const data = app.overview;
    const lines = attention(data);
    replace(element,
      h("h1", { class: "visually-hidden" }, "Overview"),
      headline(data),
      section("Needs attention", lines),
      data.other && comparison(data.other),
      h("div", { class: "columns" }, buckets(data), notReady(data)),
      charts(data),
      h("div", { class: "columns" }, components(data), recipe(data)));
    if (data.latents.length) match(lines, signal);
  }

  // How well latents match their images takes reading some: the page is there before.
  async function match(lines, signal) {
    let warnings;
    try {
      const { latents } = await get("/api/latents", {}, signal);
      warnings = latents.map((one) => one.warning).filter(Boolean);
    } catch (error) {
      warnings = signal.aborted ? [] : [`the latents could not be compared with their images: ${error.message}`];
    }
    if (!warnings.length) return;
    lines.querySelector(".fine")?.remove();
    lines.append(...warnings.map((text) => h("li", {}, `${text[0].toUpperCase()}${text.slice(1)}`)));
  }

  return { element, update };
}

function headline(data) {
  const names = new Set(data.buckets.map((row) => row.bucket));
  const waiting = data.not_ready.reduce((sum, row) => sum + row.count, 0);
  const fact = (value, word) => h("div", {}, h("dt", {}, word), h("dd", {}, value));
  return h("dl", { class: "headline" },
    fact(count(data.samples), data.samples === 1 ? "sample" : "samples"),
    fact(`${data.about ? "about " : ""}${bytes(data.bytes)}`, data.kind === "store" ? "in the store" : "in the shards"),
    data.shards !== null && fact(count(data.shards), data.shards === 1 ? "shard" : "shards"),
    waiting > 0 && fact(count(waiting), "not ready"),
    fact(count(names.size), names.size === 1 ? "bucket" : "buckets"));
}

function attention(data) {
  const lines = data.attention.map((line) => h("li", {},
    line.query
      ? h("a", { href: href({ view: "grid", ...Object.fromEntries(new URLSearchParams(line.query)) }) }, line.text)
      : line.text));
  return h("ul", { class: "attention" }, lines.length ? lines : h("li", { class: "fine" }, "Nothing needs attention."));
}

function comparison(other) {
  const line = (number, words, which) => {
    const text = `${plural(number, "sample")} ${words}`;
    return h("li", {}, number && which ? h("a", { href: href({ view: "grid", other: which }) }, text) : text);
  };
  return section("Compared",
    h("p", {}, "With ", h("span", { class: "mono" }, other.path), ", by id."),
    h("ul", { class: "plainlist" },
      line(other.both, "in both", "both"),
      line(other.captions, "with another caption", "caption"),
      line(other.only_here, "only here", "missing"),
      line(other.only_there_count, "only there")),
    other.only_there_count > 0 && h("details", {},
      h("summary", {}, other.only_there_count > other.only_there.length
        ? `The first ${count(other.only_there.length)} ids that are only there` : "Ids that are only there"),
      h("ul", { class: "ids" }, other.only_there.map((id) => h("li", { class: "mono" }, id)))));
}

function buckets(data) {
  if (!data.buckets.length) return section("Buckets", h("p", { class: "none" }, "There are no samples yet."));
  const parts = data.parts.length > 0;
  const shards = data.buckets.some((row) => row.shards !== null);
  const most = Math.max(...data.buckets.map((row) => row.samples));
  const head = (name, number) => h("th", { scope: "col", class: number ? "number" : null }, name);
  return section("Buckets", h("div", { class: "scroll" }, h("table", { class: "buckets" },
    h("thead", {}, h("tr", {}, head("Bucket"), parts && head("Part"), head("Samples", true),
      h("td", { class: "share" }), head("Bytes", true), shards && head("Shards", true))),
    h("tbody", {}, data.buckets.map((row) => h("tr", {},
      h("th", { scope: "row" },
        h("a", { href: href({ view: "grid", bucket: row.bucket, part: row.part }) }, outline(row.bucket), row.bucket)),
      parts && h("td", {}, row.part ?? "–"),
      h("td", { class: "number" }, count(row.samples)),
      h("td", { class: "share" }, meter(row.samples, most)),
      h("td", { class: "number" }, bytes(row.bytes)),
      shards && h("td", { class: "number" }, row.shards === null ? "–" : count(row.shards))))))));
}

function notReady(data) {
  if (!data.not_ready.length) return null;
  const most = Math.max(...data.not_ready.map((row) => row.count));
  return section("Not ready", h("div", { class: "scroll" }, h("table", { class: "buckets" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Reason"), h("th", { scope: "col", class: "number" }, "Samples"), h("td", { class: "share" }))),
    h("tbody", {}, data.not_ready.map((row) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: href({ view: "grid", state: row.reason }) }, plain(row.reason))),
      h("td", { class: "number" }, count(row.count)),
      h("td", { class: "share" }, meter(row.count, most))))))));
}

function charts(data) {
  if (!data.histograms.length) return null;
  return section("Numbers", h("div", { class: "charts" }, data.histograms.map((one) => histogram(one).element)));
}

function components(data) {
  if (!data.components.length) return null;
  return section("Components", data.components.map((one) => h("details", {},
    h("summary", {}, h("strong", {}, one.name), " ",
      h("span", { class: "muted" }, [one.dtype, one.shape && shape(one.shape)].filter(Boolean).join(", "))),
    tree({ member: one.suffix, "made from": one.source, model: one.model, settings: one.settings }))));
}

function recipe(data) {
  return section("Recipe", tree(data.recipe));
}

function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), children);
}
