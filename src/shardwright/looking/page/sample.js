// One sample with everything that is stored of it; beside the other path's sample when comparing.

import { get, heat, image, latent, thumb } from "./api.js";
import { badges } from "./cards.js";
import { outline, strip } from "./charts.js";
import { h, picture, replace, svg, tree } from "./dom.js";
import { backHref, filters, go, sampleHref } from "./route.js";
import { bytes, count, figure, plain, plural, shape } from "./words.js";


const BACK = ["duplicates", "map", "overview"];

export function sample(app) {
  const element = h("article", { class: "sample" });
  let steps = {};

  async function update(values, signal) {
    const n = Number.parseInt(values.n ?? "", 10);
    if (!(n >= 0)) throw new Error("The address names no sample: n is missing.");
    const data = await get(`/api/sample/${n}`, filters(values), signal);
    const to = (other) => (other === null ? null : sampleHref(other, values));
    steps = { next: to(data.next), previous: to(data.previous) };
    app.opened = n;
    document.title = `${data.id} · shardwright look`;
    const titles = Object.fromEntries(app.overview.columns.map((column) => [column.name, column.title]));
    const compared = app.overview.other && data.other;
    replace(element,
      top(values, steps),
      h("header", {}, h("h1", { class: "mono" }, data.id), summary(data)),
      app.overview.other && differences(app.overview, data),
      compared
        ? h("div", { class: "sides" }, side(data, n, null, app.overview.path, titles), side({ ...data.other, n }, n, "other", app.overview.other.path, titles))
        : side(data, n, null, null, titles),
      similar(data, values));
  }

  function keys(event) {
    const to = { n: "next", j: "next", ArrowRight: "next", p: "previous", k: "previous", ArrowLeft: "previous" }[event.key];
    if (to && steps[to]) go(steps[to]);
    return Boolean(to);
  }

  return { element, update, keys };
}

function top(values, steps) {
  const step = (to, text) => (to ? h("a", { href: to }, text) : h("span", { class: "off" }, text));
  return h("nav", { class: "steps", "aria-label": "Samples" },
    h("a", { href: backHref(values) }, `← Back to the ${BACK.includes(values.from) ? values.from : "grid"}`),
    h("span", { class: "pair" }, step(steps.previous, "Previous"), step(steps.next, "Next")));
}

function summary(data) {
  return h("p", { class: "summary" },
    h("span", { class: "bucket" }, outline(data.bucket), data.bucket ?? "no bucket", data.part && ` · ${data.part}`),
    badges(data),
    h("span", { class: "mono where" }, data.place));
}

function side(data, n, which, path, titles) {
  return h("div", { class: "side" },
    path && h("h2", { class: "mono" }, path),
    data.fault && h("p", { role: "alert" }, data.fault),
    h("div", { class: "pictures" }, photograph(data, n, which), data.latents?.map((one) => latentPicture(one, n, which, data.bucket))),
    section("Caption", caption(data), tokens(data)),
    section("Members", members(data, n, which)),
    numbers(data, titles),
    section("Record", h("div", { class: "record" }, tree(data.record))));
}

function photograph(data, n, which) {
  const size = data.image;
  if (!size) return h("figure", {}, h("div", { class: "frame empty" }, h("p", { class: "none" }, "The image was not found, or cannot be read. If it has moved, start look with --images.")));
  const frame = h("div", { class: "frame" },
    picture(image(n, which), "The complete image", "The image cannot be read."),
    size.crop && lostShare(size) > 0 && crop(size));
  return h("figure", sized(size.width, size.height), frame, h("figcaption", {},
    h("strong", {}, `Image, ${count(size.width)} × ${count(size.height)}`),
    size.crop && h("span", {}, cropWords(size)),
    size.note && h("span", {}, size.note),
    size.path && h("span", { class: "mono" }, size.path)));
}

// Figures in a row share its width by their proportions, so that all are equally high.
function sized(width, height, name = null) {
  return { class: name, style: { "--ratio": width / height } };
}

// Dims what the arrays do not show, and draws the border of what they do.
function crop(size) {
  const { width, height, crop: [left, above, right, below] } = size;
  const hole = `M0 0H${width}V${height}H0ZM${left} ${above}V${below}H${right}V${above}Z`;
  const border = { x: left, y: above, width: right - left, height: below - above };
  return svg("svg", { class: "crop", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": cropWords(size) },
    svg("path", { class: "dim", d: hole, "fill-rule": "evenodd" }),
    svg("rect", { class: "under", ...border }),
    svg("rect", { class: "over", ...border }));
}

function lostShare({ width, height, crop: [left, above, right, below] }) {
  return 1 - ((right - left) * (below - above)) / (width * height);
}

function cropWords(size) {
  const [left, above, right, below] = size.crop;
  const lost = lostShare(size);
  if (lost <= 0) return "Nothing is cropped.";
  const share = lost < 0.01 ? "less than 1" : Math.round(100 * lost);
  return `The crop keeps ${count(right - left)} × ${count(below - above)} and cuts off ${share} % of the image.`;
}

function latentPicture(one, n, which, bucket) {
  if (one.label === null) return h("figure", {}, h("figcaption", {}, h("strong", {}, one.component), h("span", {}, "There is no way to show this latent as a picture.")));
  const [, width, height] = /^(\d+)x(\d+)$/.exec(bucket ?? "") ?? [0, 1, 1];
  return h("figure", sized(width, height, "latent"),
    h("div", { class: "frame" }, picture(latent(n, one.component, which), `The latent ${one.component} as a picture`, "The latent cannot be shown.")),
    h("figcaption", {}, h("strong", {}, `Latent ${one.component}`), h("span", {}, one.label)));
}

// Offsets count characters, not UTF-16 units: an emoji is one.
function caption(data) {
  if (!data.text) return h("p", { class: "none" }, "No caption");
  const characters = Array.from(data.text);
  const lost = data.cuts ?? [];
  const cuts = lost.filter((cut) => cut.at !== null).sort((a, b) => a.at - b.at); // not all stores know where
  const piece = (from, to) => characters.slice(from, to).join("");
  return [
    h("p", { class: "full" }, piece(0, cuts[0]?.at),
      cuts.map((cut, i) => [
        h("span", { class: "stop" }, `${cut.component} stops here`),
        h("mark", {}, piece(cut.at, cuts[i + 1]?.at)),
      ])),
    lost.map((cut) => h("p", { class: "lost" }, `${plural(cut.lost, "token")} cut off by ${cut.component}.`)),
  ];
}

function tokens(data) {
  return Object.entries(data.masks).map(([name, mask]) =>
    h("div", { class: "tokens" },
      h("span", {}, h("strong", {}, name), ` ${count(data.tokens[name])} of ${plural(mask.length, "token")}`), strip(mask)));
}

function members(data, n, which) {
  if (!data.members?.length) return h("p", { class: "none" }, "Nothing is stored yet.");
  const columns = ["Member", "Type", "Shape", "Bytes", "Min", "Max", "Mean", "Std", "Invalid", "Heat map"];
  const words = new Set(["Member", "Type", "Shape", "Heat map"]);
  const cell = (i, child) => h("td", {
    "data-label": columns[i],
    class: [!words.has(columns[i]) && "number", child === "–" && "blank"].filter(Boolean).join(" ") || null,
  }, child);
  return h("div", { class: "scroll" }, h("table", { class: "members" },
    h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col", class: words.has(name) ? null : "number" }, name)))),
    h("tbody", {}, data.members.map((one) => h("tr", {},
      h("th", { scope: "row" }, h("span", { class: "mono" }, one.name),
        one.fault && h("span", { class: "badge failed" }, plain(one.fault)),
        h("small", {}, one.at), one.xxh3 && h("small", { class: "mono" }, `xxh3 ${one.xxh3}`)),
      cell(1, one.dtype ?? "–"), cell(2, shape(one.shape)), cell(3, bytes(one.bytes)),
      cell(4, figure(one.min)), cell(5, figure(one.max)), cell(6, figure(one.mean)), cell(7, figure(one.std)),
      cell(8, invalid(one)),
      cell(9, one.heat ? heatMap(one, n, which) : "–"))))));
}

function invalid(one) {
  if (one.nan === null || one.nan === undefined) return "–";
  if (!one.nan && !one.inf) return "none";
  return [one.nan > 0 && `${count(one.nan)} NaN`, one.inf > 0 && `${count(one.inf)} infinite`].filter(Boolean).join(", ");
}

function heatMap(one, n, which) {
  const address = heat(n, one.name, which);
  return h("a", { class: "heat", href: address, target: "_blank" }, picture(address, `Heat map of ${one.name}`, "–"));
}

function numbers(data, titles) {
  const known = Object.entries(data.numbers ?? {}).filter(([, value]) => value !== null);
  if (!known.length) return null;
  return section("Numbers", h("dl", { class: "numbers" }, known.map(([name, value]) => h("div", {}, h("dt", {}, titles[name] ?? plain(name)), h("dd", {}, figure(value))))));
}

function differences(overview, data) {
  if (!data.other) return section("Compared", h("p", {}, "This sample is not in ", h("span", { class: "mono" }, overview.other.path), "."));
  const arrays = data.differences ?? [];
  const texts = changed({ caption: data.text, record: data.record }, { caption: data.other.text, record: data.other.record });
  if (!texts.length && arrays.every((one) => one.same)) return section("Compared", h("p", { class: "fine" }, "Both sides are the same."));
  const column = (name) => h("th", { scope: "col" }, name);
  return section("Differences",
    arrays.length > 0 && h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, column("Member"), column("Same"), column("Largest difference"), column("Cosine"))),
      h("tbody", {}, arrays.map((one) => h("tr", {},
        h("th", { scope: "row", class: "mono" }, one.name), h("td", {}, one.same ? "yes" : "no"),
        h("td", {}, one.same ? "–" : figure(one.largest)), h("td", {}, one.same ? "–" : figure(one.cosine))))))),
    texts.length > 0 && h("div", { class: "scroll" }, h("table", { class: "texts" },
      h("thead", {}, h("tr", {}, column("Value"), column("Here"), column("There"))),
      h("tbody", {}, texts.map(([name, here, there]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, here), h("td", {}, there)))))));
}

// The values at which two JSON values differ, each with its place: "record.crop.left".
function changed(here, there, place = "") {
  const both = [here, there];
  if (both.every((value) => value !== null && typeof value === "object" && !Array.isArray(value))) {
    const names = new Set(both.flatMap(Object.keys));
    return [...names].flatMap((name) => changed(here[name], there[name], place ? `${place}.${name}` : name));
  }
  const [one, two] = both.map((value) => (typeof value === "string" ? value : value === undefined ? "missing" : JSON.stringify(value)));
  return one === two ? [] : [[place, one, two]];
}

function similar(data, values) {
  if (!data.similar?.length) return null;
  return section("Most similar", h("ul", { class: "similar" }, data.similar.map((one) => h("li", {},
    h("a", { href: sampleHref(one.n, values) },
      h("span", { class: "thumb" }, picture(thumb(one.n), "")),
      h("strong", {}, one.similarity.toFixed(3)), h("span", { class: "mono" }, one.id))))));
}

function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), children);
}
