// Every image as a point: the first two principal components of its vector, to pan, zoom and open.

import { get, thumb } from "./api.js";
import { compared } from "./comparing.js";
import { debounce, h, picture, replace } from "./dom.js";
import { cells, drawing, gradient, palette } from "./points.js";
import { go, note, read, sampleHref } from "./route.js";
import { count, plain, plural } from "./words.js";

const WAYS = { bucket: "Bucket", part: "Part", flag: "Flag", text: "Words in the caption" };
const SIDE = 65535; // coordinates of the server
const ALL = { x: SIDE / 2, y: SIDE / 2, zoom: 1 };
const NEAR = 8; // pixels from a point at which it is under the pointer

export function map(app) {
  const view = compared(app, h("h1", { class: "visually-hidden" }, "Map"), () => scatter(app));
  view.element.className = "map";
  return view;
}

function scatter(app) {
  const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": "Map of the samples. Arrow keys move, + and - zoom, Enter opens the sample at the centre." });
  const tip = h("div", { class: "tip", hidden: true });
  const legend = h("div", { class: "legend" });
  const found = h("p", { class: "found", "aria-live": "polite" });
  const by = h("select", { id: "by", onchange: () => go({ ...read(), by: by.value }, { replace: true }) },
    Object.entries(WAYS).filter(([way]) => way !== "part" || app.overview.parts.length).map(([way, text]) => h("option", { value: way }, text)));
  const typed = debounce(300, () => go({ ...read(), words: words.value.trim() }, { replace: true }));
  const words = h("input", { type: "search", id: "words", autocomplete: "off", oninput: typed });
  const stage = h("div", { class: "stage" }, canvas, tip);
  const element = h("div", {},
    h("div", { class: "line" },
      h("div", { class: "field" }, h("label", { for: "by" }, "Colour by"), by),
      h("div", { class: "field" }, h("label", { for: "words" }, "Words"), words),
      found),
    stage, legend);

  let points = null;
  let picker = null;
  let colours = { key: null };
  const camera = { ...ALL };
  let size = { width: 0, height: 0 };
  let frame = 0;
  let hovered = -1;

  async function update(values, signal) {
    by.value = Object.hasOwn(WAYS, values.by ?? "") ? values.by : "bucket";
    words.parentElement.hidden = by.value !== "text";
    if (words.value.trim() !== (values.words ?? "")) words.value = values.words ?? "";
    if (!points) await load(values, signal);
    const asked = { by: by.value, text: by.value === "text" ? values.words ?? "" : "" };
    const key = JSON.stringify(asked);
    if (key === colours.key) return;
    const answer = await get("/api/colours", asked, signal);
    colours = { key, ...paint(answer, by.value) };
    replace(legend, explained(answer, by.value));
    schedule();
  }

  async function load(values, signal) {
    const answer = await get("/api/map", {}, signal);
    points = { n: answer.n, x: Float32Array.from(answer.x), y: Float32Array.from(answer.y, (y) => SIDE - y) };
    picker = cells(points, SIDE);
    const all = answer.n.length;
    found.textContent = all < answer.of ? `${count(all)} of ${plural(answer.of, "sample")}, evenly chosen` : plural(all, "sample");
    const at = (values.at ?? "").split(",").map(Number);
    if (at.length === 3 && at.every(Number.isFinite) && at[2] > 0) [camera.x, camera.y, camera.zoom] = at;
    resize();
  }

  // Points of the most interesting colours lie on top; otherwise the order is mixed, so that no bucket hides another.
  function paint(answer, way) {
    const shades = way === "text" ? gradient() : palette(answer.legend);
    const rank = (code) => (way === "text" ? code : shades.quiet[code] ? 0 : 1);
    const all = Array.from(answer.codes, (_, i) => i);
    const mixed = (i) => (i * 2654435761) >>> 0;
    all.sort((a, b) => rank(answer.codes[a]) - rank(answer.codes[b]) || mixed(a) - mixed(b));
    return { codes: Uint16Array.from(answer.codes), order: Uint32Array.from(all), shades: shades.colours };
  }

  function explained(answer, way) {
    if (way === "text") {
      return h("p", {}, h("span", {}, "none of the words"), h("span", { class: "ramp", "aria-hidden": "true" }), h("span", {}, "all of them"));
    }
    const numbers = new Array(answer.legend.length).fill(0);
    for (const code of answer.codes) numbers[code] += 1;
    const { css } = palette(answer.legend);
    return h("ul", {}, answer.legend.map((name, i) => h("li", {},
      h("span", { class: "swatch", style: { "background-color": css[i] } }), plain(name || "none"), h("span", { class: "muted" }, ` ${count(numbers[i])}`))));
  }

  // --- from the map to the screen and back ---

  const across = () => (0.94 * camera.zoom * size.width) / SIDE;
  const down = () => (0.94 * camera.zoom * size.height) / SIDE;
  const toMap = (px, py) => [camera.x + (px - size.width / 2) / across(), camera.y + (py - size.height / 2) / down()];

  const settle = debounce(250, () => note({ at: [camera.x.toFixed(0), camera.y.toFixed(0), camera.zoom.toFixed(3)].join(",") }));

  function move(dx, dy) {
    camera.x = Math.min(SIDE, Math.max(0, camera.x - dx / across()));
    camera.y = Math.min(SIDE, Math.max(0, camera.y - dy / down()));
    moved();
  }

  // The point under (px, py) stays there.
  function zoom(times, px = size.width / 2, py = size.height / 2) {
    const [x, y] = toMap(px, py);
    camera.zoom = Math.min(400, Math.max(0.5, camera.zoom * times));
    camera.x = x - (px - size.width / 2) / across();
    camera.y = y - (py - size.height / 2) / down();
    moved();
  }

  function moved() {
    settle();
    schedule();
  }

  const schedule = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (points && colours.codes) drawing(canvas, size, points, colours, { ...camera, across: across(), down: down() }, hovered);
    });
  };

  function resize() {
    const box = stage.getBoundingClientRect();
    size = { width: box.width, height: box.height };
    const ratio = Math.min(devicePixelRatio || 1, 2);
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    schedule();
  }

  // --- pointing ---

  const ids = new Map();
  let asking = null;
  const describe = debounce(120, async (n, text) => {
    asking = new AbortController();
    try {
      if (!ids.has(n)) ids.set(n, (await get(`/api/sample/${n}`, { brief: 1 }, asking.signal)).id);
      text.textContent = ids.get(n);
    } catch (error) {
      if (error.name !== "AbortError") text.textContent = error.message;
    }
  });

  function hover(px, py) {
    const [x, y] = toMap(px, py);
    const nearest = picker?.nearest(x, y, NEAR / across(), NEAR / down()) ?? -1;
    if (nearest === hovered && !tip.hidden) return;
    hovered = nearest;
    asking?.abort();
    describe.cancel();
    tip.hidden = nearest < 0;
    canvas.style.cursor = nearest < 0 ? "" : "pointer";
    schedule();
    if (nearest < 0) return;
    const n = points.n[nearest];
    const text = h("span", { class: "mono" }, ids.get(n) ?? "…");
    replace(tip, h("span", { class: "thumb" }, picture(thumb(n), "")), text);
    const sx = (points.x[nearest] - camera.x) * across() + size.width / 2;
    const sy = (points.y[nearest] - camera.y) * down() + size.height / 2;
    const [wide, tall] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(4, Math.min(size.width - wide - 4, sx + 14))}px`;
    tip.style.top = `${sy + 14 + tall > size.height ? Math.max(4, sy - tall - 14) : sy + 14}px`;
    if (!ids.has(n)) describe(n, text);
  }

  function open() {
    if (hovered < 0) return;
    settle.cancel();
    go(sampleHref(points.n[hovered], { ...read(), view: "map" }));
  }

  const hide = () => {
    hovered = -1;
    tip.hidden = true;
    schedule();
  };

  const fingers = new Map();
  let dragged = 0;
  const place = (event) => [event.offsetX, event.offsetY];
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, place(event));
    canvas.setPointerCapture(event.pointerId);
    if (fingers.size === 1) dragged = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    const now = place(event);
    if (!before) return hover(...now);
    const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    fingers.set(event.pointerId, now);
    dragged += Math.hypot(dx, dy);
    if (dragged < 4) return;
    if (!tip.hidden) hide();
    if (other) {
      const apart = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]) || 1;
      zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else move(dx, dy);
  });
  canvas.addEventListener("pointerup", (event) => {
    fingers.delete(event.pointerId);
    if (dragged >= 4 || fingers.size) return;
    const shown = hovered;
    hover(...place(event));
    // A finger cannot hover: the first tap shows, the second opens.
    if (event.pointerType === "mouse" || (shown >= 0 && shown === hovered)) open();
  });
  canvas.addEventListener("pointercancel", (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    hide();
    zoom(Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) * 0.006), event.offsetX, event.offsetY);
  }, { passive: false });

  function keys(event) {
    const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    if (!points) return false;
    if (steps[event.key]) move(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") zoom(1.4);
    else if (event.key === "-") zoom(1 / 1.4);
    else if (event.key === "0") {
      Object.assign(camera, ALL);
      moved();
    } else if (event.key === "Enter" && document.activeElement === canvas) open();
    else return false;
    if (event.key !== "Enter") hover(size.width / 2, size.height / 2);
    return true;
  }

  const watcher = new ResizeObserver(() => points && resize());
  watcher.observe(stage);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", schedule);

  function close() {
    watcher.disconnect();
    dark.removeEventListener("change", schedule);
    cancelAnimationFrame(frame);
    settle.cancel();
    typed.cancel();
    asking?.abort();
  }

  return { element, update, keys, close };
}
