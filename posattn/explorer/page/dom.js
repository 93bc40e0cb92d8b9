// Elements. Text is only ever set as text; no string becomes markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, own]) => element.style.setProperty(key, own));
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An HTML element; children are elements or text. */
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const byId = (id) => document.getElementById(id);

/** A number in few characters: 0.0312, 12.5, 1.2e-7. */
function short(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(Math.max(0, digits - 2)).replace("-", "−").replace("e+", "e");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

/** "1 layer", "2 layers". */
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** A number with two decimals, for columns. */
function decimal(value) {
  if (!Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 1e4) return short(value);
  const text = value.toFixed(2);
  return (text === "-0.00" ? "0.00" : text).replace("-", "−");
}

/** A range in words. */
const fromTo = (low, high) => `from ${[low, high].map((end) => end.toLocaleString("en").replace("-", "−")).join(" to ")}`;

/** One of several, shown as buttons in a row: a group of radio buttons. */
function pills(container, name, labels, chosen, onPick) {
  container.replaceChildren(
    ...labels.map((label, k) =>
      make(
        "label",
        { class: "pill" },
        make("input", { type: "radio", name, value: k, checked: k === chosen, onchange: () => onPick(k) }),
        make("span", {}, label),
      ),
    ),
  );
}

function options(select, labels) {
  select.replaceChildren(...labels.map((label, k) => make("option", { value: k }, label)));
}

const KNOWN_COLOURS = ["positional", "scale-exact", "standard", "compiled"];

/** A colour for every model of a subject: its kind's own if no other model has taken it. */
function coloursOf(kinds) {
  const taken = new Set();
  let next = 0;
  return kinds.map((kind) => {
    const own = KNOWN_COLOURS.includes(kind) && !taken.has(kind);
    if (own) taken.add(kind);
    return own ? `var(--${kind})` : `var(--other-${next++ % 6})`;
  });
}
