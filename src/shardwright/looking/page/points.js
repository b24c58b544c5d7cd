// Draws many points fast, and finds the one under the pointer.

// Ten colours that stay apart on white and on black; after them, the hue goes round.
const CHOSEN = ["#3b7dd8", "#e0701a", "#2a9d60", "#c2407e", "#8a63d2", "#1798a8", "#b58900", "#d1495b", "#6b8e23", "#a0643c"];
const QUIET = "#8d959d";

// A legend as colours; what has no name is grey and lies below the others.
export function palette(legend) {
  const quiet = legend.map((name) => name === "none" || name === "no flag");
  let next = 0;
  const css = quiet.map((is) => {
    if (is) return QUIET;
    const at = next++;
    return CHOSEN[at] ?? turned((at * 137.508) % 360);
  });
  return { css, quiet, colours: Uint32Array.from(css, packed) };
}

// 0 to 100 as colours from grey to orange.
export function gradient() {
  const from = [141, 149, 157];
  const to = [224, 84, 10];
  return { colours: Uint32Array.from({ length: 101 }, (_, i) => bytes(...from.map((low, k) => Math.round(low + ((to[k] - low) * i) / 100)))) };
}

function turned(hue) {
  const channel = (k) => {
    const at = (k + hue / 30) % 12;
    return Math.round(255 * (0.52 - 0.29 * Math.max(-1, Math.min(at - 3, 9 - at, 1))));
  };
  return `#${[0, 8, 4].map((k) => channel(k).toString(16).padStart(2, "0")).join("")}`;
}

const packed = (css) => bytes(...[1, 3, 5].map((at) => Number.parseInt(css.slice(at, at + 2), 16)));

// One pixel of ImageData as a 32-bit number (little endian, as all browsers' machines are).
const bytes = (red, green, blue) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

let pixels = null; // kept from frame to frame: a new one each time costs as much as the drawing

// One pass over typed arrays into the pixels: 100,000 points take a few milliseconds.
export function drawing(canvas, size, points, { codes, order, shades }, camera, hovered) {
  const { width, height } = canvas;
  if (!width || !height) return;
  const context = canvas.getContext("2d");
  if (pixels?.width !== width || pixels.height !== height) pixels = context.createImageData(width, height);
  const target = new Uint32Array(pixels.data.buffer).fill(0);
  const ratio = width / size.width;
  const grown = Math.min(3, 1 + Math.log2(Math.max(1, camera.zoom)) / 3);
  const few = points.n.length < 500 ? 3 : points.n.length < 5000 ? 1.6 : 1;
  const side = Math.max(2, Math.round(2 * ratio * grown * few));
  const [across, down] = [camera.across * ratio, camera.down * ratio];
  const left = width / 2 - camera.x * across - side / 2;
  const above = height / 2 - camera.y * down - side / 2;
  const { x, y } = points;
  for (let k = 0; k < order.length; k += 1) {
    const i = order[k];
    const px = (x[i] * across + left) | 0;
    const py = (y[i] * down + above) | 0;
    if (px < 0 || py < 0 || px + side > width || py + side > height) continue;
    const colour = shades[codes[i]];
    for (let row = py; row < py + side; row += 1) {
      const start = row * width + px;
      for (let at = start; at < start + side; at += 1) target[at] = colour;
    }
  }
  context.putImageData(pixels, 0, 0);
  if (hovered >= 0) ring(context, x[hovered] * across + left + side / 2, y[hovered] * down + above + side / 2, side, ratio);
}

function ring(context, x, y, side, ratio) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  context.lineWidth = 2 * ratio;
  context.strokeStyle = dark ? "#fff" : "#000";
  context.beginPath();
  context.arc(x, y, side + 2 * ratio, 0, 2 * Math.PI);
  context.stroke();
}

// A grid over the map with the points of each cell, as one array sorted by cell.
export function cells({ x, y }, extent, across = 256) {
  const cell = (value) => Math.min(across - 1, Math.max(0, Math.floor((value / (extent + 1)) * across)));
  const starts = new Uint32Array(across * across + 1);
  for (let i = 0; i < x.length; i += 1) starts[cell(y[i]) * across + cell(x[i]) + 1] += 1;
  for (let c = 0; c < across * across; c += 1) starts[c + 1] += starts[c];
  const next = starts.slice();
  const sorted = new Uint32Array(x.length);
  for (let i = 0; i < x.length; i += 1) sorted[next[cell(y[i]) * across + cell(x[i])]++] = i;

  // The nearest point in an ellipse: a circle on the screen, whose sides have scales of their own.
  function nearest(px, py, wide, tall) {
    let best = -1;
    let least = 1;
    for (let row = cell(py - tall); row <= cell(py + tall); row += 1) {
      const end = starts[row * across + cell(px + wide) + 1];
      for (let k = starts[row * across + cell(px - wide)]; k < end; k += 1) {
        const i = sorted[k];
        const far = ((x[i] - px) / wide) ** 2 + ((y[i] - py) / tall) ** 2;
        if (far <= least) [best, least] = [i, far];
      }
    }
    return best;
  }

  return { nearest };
}
