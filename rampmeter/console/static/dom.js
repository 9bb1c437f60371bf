// Elements and words.  Whatever comes from a record becomes text, never markup.

export const UNKNOWN = "–";

export const byId = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// One child for each item, kept while its key is there: focus and selection outlive a reading.
export function keyed(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = key;
    }
    known.delete(key);
    const place = before === null ? parent.firstElementChild : before.nextElementSibling;
    if (place !== child) parent.insertBefore(child, place);
    update(child, item);
    before = child;
  }
  for (const gone of known.values()) gone.remove();
}

// A cell is {text, title, kind, ratio, action}; ratio draws a bar below the text, kind colours it.
export function table(section, columns, empty) {
  const head = el("tr", {}, ...columns.map((one) => el("th", { scope: "col", class: one.right ? "right" : null }, one.title)));
  const body = el("tbody");
  const nothing = el("p", { class: "empty", hidden: true }, empty);
  section.append(el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), body)), nothing);
  const make = () => el("tr", {}, ...columns.map((one) => el("td", { class: one.right ? "right" : null }, el("span"))));
  return (rows) => {
    nothing.hidden = rows.length > 0;
    keyed(body, rows, (row) => row.key, make, (line, row) => {
      setAttribute(line, "class", row.kind ?? null);
      columns.forEach((one, at) => fill(line.children[at], one.cell(row)));
    });
  };
}

function fill(cell, told) {
  const [text] = cell.children;
  if (told.action !== undefined) {
    act(cell, told.action);
    return;
  }
  setText(text, told.text);
  setAttribute(text, "class", told.kind ? `kind ${told.kind}` : null);
  setAttribute(text, "title", told.title ?? null);
  bar(cell, told.ratio, told.kind);
}

function bar(cell, ratio, kind) {
  let found = cell.querySelector(".bar");
  if (ratio === null || ratio === undefined) {
    found?.remove();
    return;
  }
  if (found === null) {
    found = el("div", { class: "bar", "aria-hidden": "true" }, el("i"));
    cell.append(found);
  }
  setAttribute(found.firstElementChild, "class", kind ?? null);
  found.firstElementChild.style.width = `${Math.round(100 * Math.min(1, Math.max(0, ratio)))}%`;
}

function act(cell, actions) {
  keyed(cell, actions, (one) => one.label, (one) => el("button", { type: "button", class: "small" }, one.label), (button, one) => {
    button.onclick = one.run;
  });
}

const known = (value, shown) => (value === null || value === undefined ? UNKNOWN : shown(value));
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (value) => known(value, (n) => whole.format(n));
export const units = (value) => known(value, (n) => (Math.abs(n) >= 1000 ? whole.format(n) : digits.format(n)));
export const percent = (value) => known(value, (ratio) => `${whole.format(100 * ratio)} %`);
export const celsius = (value) => known(value, (degrees) => `${whole.format(degrees)} °C`);
export const time = (value) => known(value, (s) => new Date(1000 * s).toLocaleTimeString("en-GB"));

export const seconds = (value) =>
  known(value, (s) => {
    if (s === 0) return "0 s";
    if (s < 0.0001) return "< 0.1 ms";
    if (s < 0.1) return `${digits.format(1000 * s)} ms`;
    if (s < 100) return `${digits.format(s)} s`;
    if (s < 6000) return `${digits.format(s / 60)} min`;
    return `${digits.format(s / 3600)} h`;
  });
