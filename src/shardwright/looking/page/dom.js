// Builds elements. Data becomes text nodes and attributes only, so no caption can become markup.

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  put(element, children);
  return element;
}

function put(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) put(element, child);
    else if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  put(element, children);
}

// A picture in a box of known size; a sentence takes its place if there is none.
export function picture(src, alt, missing = "No picture") {
  const image = h("img", { src, alt, loading: "lazy", decoding: "async" });
  image.addEventListener("error", () => image.replaceWith(h("span", { class: "none" }, missing)));
  return image;
}

export function debounce(milliseconds, call) {
  let timer = 0;
  const later = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(call, milliseconds, ...values);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

// Any JSON value as nested lists: easier to read than braces, and long texts wrap.
export function tree(value) {
  if (value === null || value === undefined) return h("span", { class: "none" }, "none");
  if (typeof value !== "object") return h("span", { class: "mono" }, String(value));
  const entries = Object.entries(value);
  if (!entries.length) return h("span", { class: "none" }, "empty");
  if (Array.isArray(value)) {
    if (value.every((item) => item === null || typeof item !== "object")) {
      return h("span", { class: "mono" }, value.map(String).join(", "));
    }
    return h("ol", { class: "tree" }, value.map((item) => h("li", {}, tree(item))));
  }
  return h("dl", { class: "tree" }, entries.map(([key, item]) => {
    const nested = item !== null && typeof item === "object" && !Array.isArray(item);
    return h("div", { class: nested ? "nested" : null }, h("dt", {}, key), h("dd", {}, tree(item)));
  }));
}
