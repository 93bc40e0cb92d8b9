// Boxes that read numbers, and the list: a slider and a box for every position.

const RANGE = 2; // of the numbers that models are trained on
const WITH_SLIDERS = 16; // numbers; a longer list has boxes alone
const ACROSS = 8; // boxes in a row
const ENTRY = { low: -1e6, high: 1e6, step: 0.1 }; // what a box of the list takes
const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;

/** What a box takes, in words: numbers from low to high, whole ones, or letters that stand for 0, 1, ... */
function wordsFor({ low, high, whole, letters }) {
  if (letters) return `a letter from ${letters[0]} to ${letters.at(-1)}`;
  return `a ${whole ? "whole " : ""}number ${fromTo(low, high)}`;
}

/** The number that a text says, or null if it says none that a box of this kind takes. */
function numberIn(text, { low, high, whole, letters }) {
  const plain = text.trim().replace("−", "-");
  if (letters) return plain.length === 1 && letters.includes(plain.toLowerCase()) ? letters.indexOf(plain.toLowerCase()) : null;
  const value = NUMBER.test(plain) ? Number(plain) : NaN;
  return value >= low && value <= high && (!whole || Number.isInteger(value)) ? value : null;
}

const textOf = (value, { letters }) => (letters ? letters[value] : String(value));

/**
 * A box for a number, with a place beside it for what is wrong. `take(value)` is called with every number that `kind` allows, and
 * with nothing else: the page goes on showing the last one. Boxes are of type text, because browsers drop the comma of 1,5 in
 * boxes of type number and hand over 15.
 */
class NumberBox {
  constructor(name, kind, take, input = make("input", { "aria-label": name })) {
    Object.assign(this, { name, kind, take, input });
    this.problem = make("p", { class: "wrong", role: "status", id: `wrong-${name.replaceAll(/\W+/g, "-")}`, hidden: true });
    fill(input, { type: "text", class: "number", autocomplete: "off", "aria-describedby": this.problem.id }, []);
    input.addEventListener("keydown", (event) => this.nudge(event));
  }

  /** Shows a number without telling anyone. */
  set(value) {
    this.value = value;
    this.input.value = textOf(value, this.kind);
    this.say("");
    return this;
  }

  read() {
    const value = numberIn(this.input.value, this.kind);
    if (value === null) return this.say(this.complaint());
    this.say("");
    this.value = value;
    this.take(value);
  }

  complaint() {
    const text = this.input.value.trim();
    const point = text.replace(",", ".");
    const comma = point !== text && numberIn(point, this.kind) !== null ? `, with a decimal point: ${point}` : "";
    const still = `The page still shows ${textOf(this.value, this.kind).replace("-", "−")}.`;
    return `${this.name} is ${text === "" ? "empty" : `“${text}”`}; it takes ${wordsFor(this.kind)}${comma}. ${still}`;
  }

  say(problem) {
    this.problem.textContent = problem;
    this.problem.hidden = problem === "";
    this.input.setAttribute("aria-invalid", String(problem !== ""));
  }

  /** The arrow keys step up and down. */
  nudge(event) {
    const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    const next = Number((this.value + direction * (this.kind.step ?? 1)).toFixed(6));
    if (next < this.kind.low || next > this.kind.high) return;
    this.set(next);
    this.take(next);
  }
}

/** Fills `container` with what stands at each place of a list: an entry, and behind it what is wrong with its boxes. */
function showEntries(container, length, entry) {
  container.style.setProperty("--columns", Math.min(ACROSS, length));
  container.replaceChildren(...Array.from({ length }, (_, i) => entry(i)).flat());
}

class ListEditor {
  /** `onChange()` is called whenever a number changes. */
  constructor(container, onChange) {
    this.container = container;
    this.onChange = onChange;
    this.numbers = [];
  }

  /** Keeps what the list begins with. */
  resize(length) {
    const kept = this.numbers.slice(0, length);
    if (length !== this.numbers.length) this.set([...kept, ...randomList(length - kept.length)]);
  }

  set(numbers) {
    this.numbers = [...numbers];
    this.container.classList.toggle("long", numbers.length > WITH_SLIDERS);
    showEntries(this.container, numbers.length, (i) => this.column(i));
  }

  /** The slider and the box of a position, and behind them what is wrong with the box. */
  column(i) {
    const name = `x${i + 1}`;
    const change = (value) => {
      this.numbers[i] = slider.value = value;
      this.onChange();
    };
    const box = new NumberBox(name, ENTRY, change).set(this.numbers[i]);
    const slider = make("input", {
      type: "range", min: -RANGE, max: RANGE, step: 0.05, value: this.numbers[i], "aria-label": `${name}, drag`, class: "upright",
    });
    box.input.addEventListener("input", () => box.read());
    slider.addEventListener("input", () => {
      box.set(Number(slider.value));
      change(box.value);
    });
    const number = make("span", { class: "quiet", "aria-hidden": "true" }, i + 1);
    return [make("div", { class: "entry" }, slider, box.input, number), box.problem];
  }
}

/** A list as the training draws it: two bounds on [-2, 2], and numbers between them; here rounded. */
function randomList(length) {
  const ends = [Math.random(), Math.random()].map((u) => RANGE * (2 * u - 1));
  return Array.from({ length }, () => Number((ends[0] + Math.random() * (ends[1] - ends[0])).toFixed(2)));
}
