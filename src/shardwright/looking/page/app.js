// Chooses the view for the address, and holds what all views share: the overview, keys, errors.

import { get, Unanswered } from "./api.js";
import { duplicates } from "./duplicates.js";
import { h } from "./dom.js";
import { grid } from "./grid.js";
import { map } from "./map.js";
import { overview } from "./overview.js";
import { backHref, go, read } from "./route.js";
import { sample } from "./sample.js";

const VIEWS = { overview, grid, sample, duplicates, map };
const TITLES = { overview: "Overview", grid: "Grid", sample: "Sample", duplicates: "Duplicates", map: "Map" };

const main = document.getElementById("main");
const busy = document.querySelector(".busy");
const keys = document.getElementById("keys");

// What views may use: the overview as last read, and the sample that was last opened.
const app = {
  overview: null,
  opened: null,
  async refresh(signal) {
    app.overview = await get("/api/overview", {}, signal);
    document.getElementById("path").textContent = app.overview.path;
  },
};

let name = null;
let view = null;
let running = null;

async function draw({ y = 0, moved = true } = {}) {
  const values = read();
  const wanted = Object.hasOwn(VIEWS, values.view ?? "") ? values.view : "overview";
  running?.abort();
  const mine = (running = new AbortController());
  const fresh = wanted !== name;
  document.title = `${TITLES[wanted]} · shardwright look`;
  mark(wanted === "sample" ? values.from || "grid" : wanted);
  busy.hidden = false;
  try {
    if (!app.overview || (fresh && wanted === "overview")) await app.refresh(mine.signal);
    if (mine.signal.aborted) return;
    if (fresh) {
      view?.close?.();
      name = wanted;
      view = VIEWS[wanted](app);
      main.replaceChildren(view.element);
      if (moved) main.focus({ preventScroll: true });
    }
    await view.update(values, mine.signal);
    if (mine.signal.aborted) return;
    if (moved) scrollTo(0, y);
    view.arrived?.();
  } catch (error) {
    if (!mine.signal.aborted) fail(error);
  } finally {
    if (mine === running) busy.hidden = true;
  }
}

function fail(error) {
  view?.close?.();
  name = view = null;
  const path = app.overview?.path ?? "PATH";
  main.replaceChildren(
    h("section", { class: "state", role: "alert" },
      h("h1", {}, error instanceof Unanswered ? "The server has stopped" : "This view cannot be shown"),
      h("p", {}, error.message),
      error instanceof Unanswered && h("p", {}, "Start it again: ", h("code", {}, `shardwright look ${path}`)),
      h("p", {}, h("button", { type: "button", onclick: () => draw() }, "Try again"))),
  );
}

app.fail = fail;

function mark(current) {
  for (const link of document.querySelectorAll("#views a")) {
    if (link.getAttribute("href") === `?view=${current}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// The place on the page belongs to the address too, but only for back and forward.
history.scrollRestoration = "manual";
let still = 0;
addEventListener("scroll", () => {
  clearTimeout(still);
  still = setTimeout(() => history.replaceState({ y: scrollY }, ""), 150);
}, { passive: true });

addEventListener("route", (event) => draw(event.detail));
addEventListener("popstate", (event) => {
  clearTimeout(still);
  draw({ y: event.state?.y ?? 0 });
});

addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='?']");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  clearTimeout(still);
  history.replaceState({ y: scrollY }, "");
  go(link.getAttribute("href"));
});

document.getElementById("help").addEventListener("click", () => keys.showModal());

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  const field = event.target.closest?.("input, select, textarea");
  if (field) {
    if (event.key === "Escape") field.blur();
    return;
  }
  if (event.key === "?") keys.showModal();
  else if (event.key === "/") search();
  else if (event.key === "Escape" && name === "sample") go(backHref(read()));
  else if (!view?.keys?.(event)) return;
  event.preventDefault();
});

async function search() {
  if (name !== "grid") {
    history.pushState(null, "", "?view=grid");
    await draw();
  }
  document.querySelector("#filter-text")?.focus();
}

draw({ y: history.state?.y ?? 0 });
