// The list: a slider and a number for every position, and the scale.

const RANGE = 2; // of the numbers that models are trained on
const WITH_SLIDERS = 16; // numbers; a longer list has boxes alone

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
    this.container.replaceChildren(...this.numbers.map((_, i) => this.column(i)));
  }

  column(i) {
    const name = `x${i + 1}`;
    const value = this.numbers[i];
    const slider = make("input", {
      type: "range", min: -RANGE, max: RANGE, step: 0.05, value, "aria-label": `${name}, drag`, class: "upright",
    });
    const box = make("input", { type: "number", step: 0.1, value, "aria-label": name, inputmode: "decimal" });
    slider.addEventListener("input", () => {
      box.value = slider.value;
      this.change(i, box);
    });
    box.addEventListener("input", () => {
      slider.value = box.value;
      this.change(i, box);
    });
    return make("div", { class: "entry" }, slider, box, make("span", { class: "quiet", "aria-hidden": "true" }, i + 1));
  }

  change(i, box) {
    const value = box.value.trim() === "" ? NaN : Number(box.value);
    box.setAttribute("aria-invalid", String(!Number.isFinite(value)));
    this.numbers[i] = value;
    this.onChange();
  }
}

/** A list as the training draws it: two bounds on [-2, 2], and numbers between them; here rounded. */
function randomList(length) {
  const ends = [Math.random(), Math.random()].map((u) => RANGE * (2 * u - 1));
  return Array.from({ length }, () => Number((ends[0] + Math.random() * (ends[1] - ends[0])).toFixed(2)));
}
