// Histograms. Bars are SVG and stretch with the box; axis labels are text and do not.

import { h, svg } from "./dom.js";
import { count, figure, plural } from "./words.js";

// Round numbers between two values: steps of 1, 2 or 5 times a power of ten.
export function ticks(low, high, wanted = 5) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(span / wanted));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => span / size <= wanted);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + span * 1e-9; at += 1) {
    found.push(Number((at * step).toPrecision(12)));
  }
  return found;
}

// bins: [[low, high, count], ...]. mark(value) moves the line across the bars.
export function histogram({ title, bins, unknown = 0, unit = "sample" }) {
  if (!bins.length) {
    return { element: h("figure", { class: "chart" }, h("figcaption", {}, title), h("p", { class: "none" }, "No numbers yet.")) };
  }
  const low = bins[0][0];
  const high = bins.at(-1)[1];
  const span = high - low || 1;
  const most = Math.max(...bins.map((bin) => bin[2]), 1);
  const across = (value) => (100 * (value - low)) / span;
  const bars = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": describe(title, bins, unit) },
    bins.map(([from, to, number]) => {
      // A bin with few samples beside one with many still shows as a line.
      const tall = number ? Math.max((100 * number) / most, 1.5) : 0;
      const wide = Math.max(across(to) - across(from), 0.4);
      return svg("g", {},
        svg("title", {}, `${figure(from)} to ${figure(to)}: ${plural(number, unit)}`),
        svg("rect", { class: "reach", x: across(from), y: 0, width: wide, height: 100 }),
        svg("rect", { class: "bar", x: across(from) + wide * 0.06, y: 100 - tall, width: wide * 0.88, height: tall }));
    }));
  const line = h("div", { class: "threshold", hidden: true });
  const element = h("figure", { class: "chart" },
    h("figcaption", {}, title),
    h("div", { class: "plot" },
      h("span", { class: "most", "aria-hidden": "true" }, count(most)),
      bars, line),
    h("div", { class: "axis", "aria-hidden": "true" },
      ticks(low, high).map((value) => h("span", { style: { left: `${across(value)}%` } }, figure(value)))),
    unknown > 0 && h("p", { class: "small" }, `Not known for ${plural(unknown, unit)}.`));
  const mark = (value) => {
    line.hidden = false;
    line.style.left = `${Math.min(100, Math.max(0, across(value)))}%`;
  };
  return { element, mark };
}

function describe(title, bins, unit) {
  const [from, to, number] = bins.reduce((best, bin) => (bin[2] > best[2] ? bin : best));
  return `${title}: from ${figure(bins[0][0])} to ${figure(bins.at(-1)[1])}, most (${plural(number, unit)}) between ${figure(from)} and ${figure(to)}`;
}

// A share of a total as a thin bar.
export function meter(value, total) {
  const share = total > 0 ? (100 * value) / total : 0;
  return h("span", { class: "meter", "aria-hidden": "true" }, h("span", { style: { width: `${Math.max(share, value ? 0.5 : 0)}%` } }));
}

// A mask of ones and zeros as a strip: read tokens are filled, padding is hatched by CSS.
export function strip(mask) {
  const runs = mask.match(/1+|0+/g) ?? [];
  return h("div", { class: "strip", "aria-hidden": "true" },
    runs.map((run) => h("span", { class: run[0] === "1" ? "on" : null, style: { "flex-grow": run.length } })));
}

// The proportions of a bucket as a small outline, so that wide and tall are seen at once.
export function outline(bucket) {
  const [, width, height] = /^(\d+)x(\d+)$/.exec(bucket ?? "") ?? [];
  if (!width) return null;
  const scale = 12 / Math.max(width, height);
  const size = [Math.max(width * scale, 3), Math.max(height * scale, 3)];
  return svg("svg", { class: "outline", viewBox: "0 0 14 14", "aria-hidden": "true" },
    svg("rect", { x: 7 - size[0] / 2, y: 7 - size[1] / 2, width: size[0], height: size[1], rx: 0.5 }));
}
