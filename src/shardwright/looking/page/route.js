// The address holds the complete state: every view is made from it, and every change goes into it.

// What /api/samples and /api/sample understand, named as in the address.
const FILTERS = ["bucket", "part", "state", "text", "id", "flag", "other", "sort", "order"];

export const read = () => Object.fromEntries(new URLSearchParams(location.search));

export function query(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value != null);
  return new URLSearchParams(kept).toString();
}

export const href = (values) => `?${query(values)}`;

export function filters(values) {
  return Object.fromEntries(FILTERS.filter((name) => values[name]).map((name) => [name, values[name]]));
}

export function go(address, { replace = false } = {}) {
  const target = typeof address === "string" ? address : href(address);
  if (replace) history.replaceState(history.state, "", target);
  else history.pushState(null, "", target);
  dispatchEvent(new CustomEvent("route", { detail: { moved: !replace } }));
}

// Put a value into the address without drawing the view again.
export function note(values) {
  history.replaceState(history.state, "", href({ ...read(), ...values }));
}

// The address of a sample carries the view it was opened from, so "back" finds it again.
export function sampleHref(n, values) {
  const from = values.view === "sample" ? values.from : values.view === "grid" ? "" : values.view;
  return href({ ...values, view: "sample", n, from });
}

export function backHref(values) {
  return href({ ...values, view: values.from || "grid", n: "", from: "" });
}
