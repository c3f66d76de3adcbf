// Makes elements. A string is always text: nothing in the console reads markup.

const SVG = "http://www.w3.org/2000/svg";

// Characters that turn the direction of text around: with them a name or a line of code can be shown as another.
const TURNING = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

const seen = new WeakMap();

export function visible(text) {
  return String(text).replace(TURNING, (one) => `⟨${number(one)}⟩`);
}

// A character by its number, as Unicode writes it.
export function number(character) {
  return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function put(place, ...children) {
  place.replaceChildren(...children.flat(Infinity).filter(isThere).map(node));
  return place;
}

// Shows what has changed; if nothing has, whoever reads or has the focus there is left alone.
export function renew(place, data, make) {
  const now = JSON.stringify(data);
  if (seen.get(place) === now) return;
  seen.set(place, now);
  const focused = place.contains(document.activeElement) ? document.activeElement.textContent : null;
  put(place, make(data));
  if (focused === null) return;
  [...place.querySelectorAll("a, button, [tabindex]")].find((one) => one.textContent === focused)?.focus();
}

export function to(view, id, ...children) {
  return h("a", { href: `#/${view}/${encodeURIComponent(id)}` }, ...children);
}

export function faint(text) {
  return h("p", { class: "faint" }, text);
}

export function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

// Names and values, one below the other; what has no value is left out.
export function facts(pairs) {
  const rows = Object.entries(pairs).filter(([, value]) => isThere(value) && value !== "");
  return h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function table(caption, heads, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell)))))));
}

export function list(caption, heads, rows) {
  return rows.length ? table(caption, heads, rows) : faint("None.");
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || !isThere(value)) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name.startsWith("on") || (name === "href" && !value.startsWith("#"))) throw new Error(`no text for ${name}`);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter(isThere).map(node));
  return element;
}

function isThere(value) {
  return value !== null && value !== undefined && value !== false;
}

function node(child) {
  return child instanceof Node ? child : document.createTextNode(visible(child));
}
