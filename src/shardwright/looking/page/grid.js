// All samples as cards: filtered, sorted, a page at a time.

import { get } from "./api.js";
import { card } from "./cards.js";
import { debounce, h, replace } from "./dom.js";
import { filters, go, href } from "./route.js";
import { count, plain, plural } from "./words.js";

const SIZE = 60;
const COMPARED = { both: "in both", missing: "only here", caption: "another caption" };

export function grid(app) {
  const bar = filterBar(app.overview, change);
  const found = h("p", { class: "found", "aria-live": "polite" });
  const shown = h("div", { class: "toggle", role: "group", "aria-label": "Thumbnails" });
  const cards = h("ol", { class: "cards" });
  const pages = h("nav", { class: "pages", "aria-label": "Pages" });
  const element = h("div", { class: "grid" }, h("h1", { class: "visually-hidden" }, "Grid"), bar.element,
    h("div", { class: "line" }, found, h("div", { class: "tools" }, bar.sort, shown)), cards, pages);
  const all = app.overview.samples + app.overview.not_ready.reduce((sum, row) => sum + row.count, 0);
  let values = {};
  let last = 0;

  function change(changed, options) {
    go({ ...values, ...changed, view: "grid", page: "" }, options);
  }

  async function update(wanted, signal) {
    values = { ...wanted, view: "grid" };
    bar.set(values);
    toggle();
    const page = Math.max(0, Number.parseInt(values.page ?? "0", 10) || 0);
    const answer = await get("/api/samples", { ...filters(values), page, size: SIZE }, signal);
    last = Math.max(0, Math.ceil(answer.total / SIZE) - 1);
    const sorted = app.overview.columns.find((column) => column.name === values.sort);
    const { path, other } = app.overview;
    found.textContent = words(answer.total) + (other ? `. Left: ${path}, right: ${other.path}` : "");
    replace(cards, answer.samples.map((sample) => h("li", {}, card(sample, values, { compare: Boolean(app.overview.other), sorted }))));
    if (!answer.samples.length) replace(cards, h("li", { class: "state" }, nothing(answer.total)));
    pager(answer.page);
  }

  function words(total) {
    return Object.keys(filters({ ...values, sort: "", order: "" })).length
      ? `${count(total)} of ${plural(all, "sample")}` : plural(total, "sample");
  }

  function nothing(total) {
    if (total) return [h("p", {}, "This page is past the last sample."), h("a", { href: href({ ...values, page: "" }) }, "First page")];
    if (!all) return h("p", {}, "There are no samples yet.");
    return [h("p", {}, "No sample matches these filters."), h("a", { href: "?view=grid" }, "Show all samples")];
  }

  function toggle() {
    const option = (of, text) => h("a", { href: href({ ...values, of }), "aria-current": (values.of ?? "") === of ? "true" : null }, text);
    replace(shown, app.overview.latents.length > 0 && [option("", "Picture"), option("latent", "Latent")]);
  }

  function pager(page) {
    const link = (to, text, rel) => (to < 0 || to > last
      ? h("span", { class: "off" }, text)
      : h("a", { href: href({ ...values, page: to || "" }), rel }, text));
    const number = h("input", { type: "number", id: "page", min: 1, max: last + 1, value: page + 1 });
    const jump = (event) => {
      event.preventDefault();
      const to = Math.min(last, Math.max(0, (Number.parseInt(number.value, 10) || 1) - 1));
      go({ ...values, page: to || "" });
    };
    replace(pages, last > 0 && [
      link(page - 1, "← Previous", "prev"),
      h("form", { onsubmit: jump }, h("label", { for: "page" }, "Page"), number, ` of ${count(last + 1)}`),
      link(page + 1, "Next →", "next"),
    ]);
  }

  function keys(event) {
    if (event.key === "n" || event.key === "p") {
      const link = pages.querySelector(event.key === "n" ? "a[rel=next]" : "a[rel=prev]");
      if (link) go(link.getAttribute("href"));
      return true;
    }
    return move(event.key);
  }

  function move(key) {
    const all = [...cards.querySelectorAll(".card")];
    if (!all.length) return false;
    const at = all.indexOf(document.activeElement.closest(".card"));
    const top = all[0].getBoundingClientRect().top;
    const columns = all.findIndex((one) => one.getBoundingClientRect().top > top + 1);
    const across = columns < 0 ? all.length : columns;
    const step = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[key];
    if (!step) return false;
    const to = at < 0 ? 0 : at + step;
    if (to >= 0 && to < all.length) all[to].focus();
    return true;
  }

  // Back from a sample: the card it was opened from is in sight and has the focus.
  function arrived() {
    if (app.opened === null) return;
    const one = cards.querySelector(`[data-n="${app.opened}"]`);
    app.opened = null;
    if (!one || document.activeElement.matches("input, select")) return; // somebody is typing by now
    one.focus({ preventScroll: true });
    one.scrollIntoView({ block: "nearest" });
  }

  return { element, update, keys, arrived, close: bar.close };
}

function filterBar(data, change) {
  const fields = {};
  const field = (name, text, control) => {
    control.id = `filter-${name}`;
    fields[name] = control;
    return h("div", { class: `field field-${name}` }, h("label", { for: control.id }, text), control);
  };
  const select = (name, text, all, options) => field(name, text,
    h("select", { onchange: (event) => change({ [name]: event.target.value }) },
      h("option", { value: "" }, all), options.map(([value, shown]) => h("option", { value }, shown))));
  const typed = debounce(250, (name, value) => change({ [name]: value }, { replace: true }));
  const text = (name, title) => field(name, title,
    h("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: (event) => typed(name, event.target.value.trim()) }));
  const named = (names) => [...new Set(names)].map((name) => [name, plain(name)]);

  const order = h("select", { id: "filter-order", "aria-label": "Order", onchange: (event) => change({ order: event.target.value }) },
    h("option", { value: "" }, "↑ low to high"), h("option", { value: "desc" }, "↓ high to low"));
  const sort = select("sort", "Sort by", "stored order", data.columns.map((column) => [column.name, column.title]));
  sort.append(order);

  const reasons = data.not_ready.map((row) => [row.reason, `${plain(row.reason)} (${count(row.count)})`]);
  const clear = h("a", { class: "clear" }, "Clear filters");
  const more = h("details", { class: "more" }, h("summary", {}, "Filters"));
  const element = h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
    text("text", "Caption"),
    more,
    h("div", { class: "rest" },
      select("bucket", "Bucket", "all", [...new Set(data.buckets.map((row) => row.bucket))].map((name) => [name, name])),
      data.parts.length > 0 && select("part", "Part", "all", data.parts.map((name) => [name, name])),
      reasons.length > 0 && select("state", "State", "all", [["ready", "ready"], ...reasons]),
      select("flag", "Flag", "any", named(data.flags)),
      data.other && select("other", "Compared", "all", Object.entries(COMPARED)),
      text("id", "Id"),
      clear));

  function set(values) {
    for (const [name, control] of Object.entries(fields)) {
      const value = values[name] ?? "";
      // The address holds no spaces at the ends; somebody who types may have one there.
      if (control.value.trim() === value) continue;
      // An address may name a value that this data does not have; it shows, so that it can be cleared.
      if (control.options && ![...control.options].some((option) => option.value === value)) {
        control.append(h("option", { value }, value));
      }
      control.value = value;
    }
    order.value = values.order === "desc" ? "desc" : "";
    order.disabled = !values.sort;
    const used = Object.keys(filters({ ...values, text: "", sort: "", order: "" })).length;
    more.firstChild.textContent = used ? `Filters (${used})` : "Filters";
    clear.setAttribute("href", href({ view: "grid", of: values.of, sort: values.sort, order: values.order }));
    clear.hidden = !Object.keys(filters({ ...values, sort: "", order: "" })).length;
  }

  return { element, sort, set, close: typed.cancel };
}
