// First view: a task, a list and a scale; each model's answer, error, attention and graph, at once.

const START = [1.44, -0.56, 1.26, 0.65, -0.15, 0.02, -0.1, -0.61]; // drawn by the sampler of the training
const OPENING = "sort"; // the task that the page opens with, if it has it
const FIRST = 3; // models that are shown until more are asked for

class AnswersView {
  constructor(content, networkAt) {
    this.content = content;
    this.networkAt = networkAt; // number to a promise of a Network
    this.editor = new ListEditor(byId("list"), () => this.update());
    this.opening = Math.max(0, content.subjects.findIndex(({ task }) => task === OPENING));
    const names = content.subjects.map(({ task, title, lengths }) => {
      const alike = content.subjects.filter((other) => other.task === task).length > 1;
      return alike ? `${title}, n = ${spanOf(lengths)}` : title;
    });
    pills(byId("tasks"), "task", names, this.opening, (k) => this.pick(k));
    this.count = new NumberBox("n", { low: 1, whole: true }, (length) => this.lengthen(length), byId("count"));
    byId("list-foot").before(this.count.problem);
    byId("count").addEventListener("change", () => this.count.read());
    byId("scale").addEventListener("input", () => this.update());
    byId("random").addEventListener("click", () => this.refill(randomList(this.editor.numbers.length)));
    byId("length").addEventListener("change", () => this.lengthen(Number(byId("length").value)));
    byId("fewer").addEventListener("click", () => this.lengthen(this.editor.numbers.length - 1));
    byId("more").addEventListener("click", () => this.lengthen(this.editor.numbers.length + 1));
    byId("graph-model").addEventListener("change", () => this.showGraph());
    byId("threshold").addEventListener("input", () => this.showGraph());
    byId("stretch").addEventListener("change", () => this.update());
    byId("others").addEventListener("click", () => {
      this.everything = !this.everything;
      this.update();
    });
    this.editor.set(START);
  }

  refill(numbers) {
    this.editor.set(numbers);
    this.update();
  }

  /** A list of another length, with the same numbers as far as it goes. */
  lengthen(length) {
    this.editor.resize(length);
    this.count.set(length);
    byId("fewer").disabled = length === 1;
    byId("more").disabled = length === this.count.kind.high;
    const taking = this.entries.filter(({ model }) => takes(model, length));
    const chosen = taking.findIndex(({ model }) => model.label === byId("graph-model").selectedOptions[0]?.label);
    options(byId("graph-model"), taking.map(({ model }) => model.label));
    byId("graph-model").value = Math.max(0, chosen);
    this.update();
  }

  async pick(number) {
    this.wanted = number;
    const { task, lengths, longest, models } = this.content.subjects[number];
    const colours = coloursOf(models.map(({ kind }) => kind));
    const shown = models.map((model, k) => this.entryOf(model, colours[k]));
    await Promise.all(shown.map((entry) => this.choose(entry, 0)));
    if (this.wanted !== number) return; // another task was picked while the weights were read
    // A list that its writer made longer or shorter stays so, where some network takes it.
    const length = longest && this.picked !== undefined ? Math.min(longest, this.editor.numbers.length) : lengths.at(-1);
    this.picked = number;
    this.entries = shown;
    byId("count-choice").hidden = !longest;
    this.count.kind.high = longest;
    byId("count-range").textContent = `1 to ${longest}`;
    byId("length-choice").hidden = longest !== null || lengths.length === 1;
    byId("length").replaceChildren(...lengths.map((n) => make("option", { value: n, selected: n === length }, n)));
    byId("scores").replaceChildren(...shown.map(({ card }) => card));
    byId("maps").replaceChildren(...shown.map(({ grid }) => grid.element));
    this.lengthen(length);
    byId("answers").dataset.task = task; // shown, for whoever waits for it
  }

  entryOf(model, colour) {
    const entry = { model, colour, grid: new MapGrid(model.label, colour) };
    entry.error = make("strong", {});
    entry.unit = make("span", { class: "quiet" });
    entry.relative = make("span", { class: "quiet" });
    entry.bar = make("span", { class: "bar" });
    const choice = make("select", { "aria-label": `network of ${model.label}` });
    options(choice, model.choices.map(({ name }) => name));
    choice.addEventListener("change", async () => {
      await this.choose(entry, Number(choice.value));
      this.update();
    });
    entry.card = make(
      "div",
      { class: "score", style: { "--colour": colour } },
      make("h3", {}, make("span", { class: "swatch" }), model.label),
      make("p", {}, model.about),
      make("p", { class: "quiet" }, model.detail),
      model.choices.length > 1 ? choice : null,
      make("p", { class: "figure" }, entry.error, entry.unit, entry.relative),
      make("div", { class: "gauge", "aria-hidden": "true" }, entry.bar),
    );
    return entry;
  }

  async choose(entry, choice) {
    entry.wanted = choice;
    const network = await this.networkAt(entry.model.choices[choice].network);
    if (entry.wanted === choice) entry.network = network;
  }

  update() {
    const scale = Number(byId("scale").value);
    byId("scale-now").textContent = scale.toFixed(1);
    if (!this.entries) return;
    const base = this.editor.numbers;
    const x = base.map((value) => value * scale);
    this.truth = truthOf(TASKS, this.content.subjects[this.picked].task, x);
    this.taking = this.entries.filter(({ model }) => takes(model, x.length));
    this.taking.forEach((entry) => this.answer(entry, x, base, scale));
    this.showModels();
    this.showTable(x);
    this.showChart();
    this.showGraph();
  }

  /** The first models that take the list, the others on demand; and which ones do not take it. */
  showModels() {
    const rest = this.taking.slice(FIRST);
    this.shown = this.everything ? this.taking : this.taking.slice(0, FIRST);
    for (const entry of this.entries) entry.card.hidden = entry.grid.element.hidden = !this.shown.includes(entry);
    byId("others").hidden = rest.length === 0;
    byId("others").setAttribute("aria-expanded", String(Boolean(this.everything)));
    byId("others").textContent = this.everything ? `Show ${FIRST} networks only` : `Show ${rest.length} more: ${labelsOf(rest)}`;
    const missing = this.entries.filter((entry) => !this.taking.includes(entry));
    const lengths = [...new Set(missing.map(({ model }) => spanOf(model.lengths)))];
    const said = (own) => labelsOf(missing.filter(({ model }) => spanOf(model.lengths) === own));
    byId("missing").textContent = lengths.map((own) => `For lists of ${own} only: ${said(own)}.`).join(" ");
  }

  answer(entry, x, base, scale) {
    const { network } = entry;
    entry.result = null;
    entry.problem = "";
    try {
      entry.result = network.run(x);
    } catch (error) {
      entry.problem = error.message;
    }
    entry.rms = entry.result && this.truth ? rootMeanSquare(entry.result.answer, this.truth) : null;
    entry.error.textContent = short(entry.rms);
    entry.unit.textContent = entry.rms === null ? entry.problem : "root mean square error";
    entry.relative.textContent = entry.rms === null ? "" : `= ${short(entry.rms / scale)} × c`;
    // Six decades of error: from 0.00001 (empty) to 10 (full).
    const filled = entry.rms ? (Math.log10(entry.rms) + 5) / 6 : 0;
    entry.bar.style.setProperty("width", `${100 * Math.min(1, Math.max(0, filled))}%`);
    if (!entry.result) return entry.grid.clear(entry.problem);
    const constant = network.fixed;
    const before = constant || scale === 1 ? entry.result : network.run(base);
    entry.grid.show(entry.result, network.words, movement(entry.result.maps, before.maps, entry.result.rows), constant);
  }

  showTable(x) {
    const positions = x.map((_, i) => make("th", { scope: "col" }, i + 1));
    const [first, last] = ["position", "largest error"].map((name) => make("th", { scope: "col" }, name));
    const head = make("tr", {}, first, ...positions, last);
    const line = (name, numbers, last, style = {}, cell = () => ({})) =>
      make(
        "tr",
        { style },
        make("th", { scope: "row" }, name),
        ...x.map((_, i) => make("td", cell(i), numbers ? decimal(numbers[i]) : "–")),
        make("td", {}, last),
      );
    const rows = this.shown.map(({ model, colour, result }) => {
      const errors = result && this.truth ? result.answer.map((value, i) => Math.abs(value - this.truth[i])) : null;
      // A cell's shade is its error, relative to the size of the true answers: full from a tenth on.
      const size = this.truth ? Math.max(1e-9, ...this.truth.map(Math.abs)) : 1;
      const shade = (i) => (errors ? { style: { "--off": `${Math.min(100, (errors[i] / size) * 1000).toFixed(0)}%` } } : {});
      const name = make("span", {}, make("span", { class: "swatch" }), model.label);
      return line(name, result?.answer, errors ? short(Math.max(...errors)) : "–", { "--colour": colour }, shade);
    });
    const given = line("input c x", x, "");
    const truth = line("true answer", this.truth, "");
    truth.classList.add("truth");
    byId("answer-table").replaceChildren(make("thead", {}, head), make("tbody", {}, given, truth, ...rows));
  }

  showChart() {
    const line = (numbers) => numbers.map((value, i) => [i + 1, Number.isFinite(value) ? value : null]);
    const markers = Object.keys(MARKERS);
    const series = this.shown.flatMap(({ model, colour, result }, k) => {
      if (!result) return [];
      return [{ label: model.label, colour, marker: markers[k % markers.length], points: line(result.answer) }];
    });
    if (this.truth) series.unshift({ label: "true answer", colour: "var(--truth)", thick: true, points: line(this.truth) });
    const whole = this.editor.numbers.length > WITH_SLIDERS ? null : this.editor.numbers.map((_, i) => i + 1);
    const room = Math.max(300, byId("answer-chart").clientWidth);
    byId("answer-chart").replaceChildren(
      chartPicture({
        series, xlabel: "position", ylabel: this.truth ? "answer; wide and grey: the true one" : "answer", xticks: whole, width: room, height: 260, title: "Answers by position",
      }),
    );
  }

  showGraph() {
    const entry = this.taking?.[Number(byId("graph-model").value)];
    const least = Number(byId("threshold").value);
    byId("threshold-now").textContent = least.toFixed(2);
    if (!entry?.result) {
      byId("graph-about").textContent = entry ? `${entry.model.label} ${entry.problem}.` : "";
      this.drawn = null;
      return byId("graph").replaceChildren();
    }
    const room = byId("graph").clientWidth;
    // Maps that no list changes are the same arrays: their picture stays.
    const drawn = [entry, least, room, entry.result.rows, ...entry.result.maps];
    if (this.drawn?.length === drawn.length && drawn.every((part, k) => part === this.drawn[k])) return;
    this.drawn = drawn;
    const label = `communication graph of ${entry.model.label}`;
    const { words, fixed } = entry.network;
    const { edges, picture } = attentionPicture(entry.result, words, least, label, room);
    const kept = edges.filter(({ from, to }) => from === to).length;
    byId("graph-about").textContent =
      `${edges.length} arrows of weight ${least.toFixed(2)} or more, ${kept} of them from a position to itself (grey). ` +
      (words.blank ? `${words.last[0].toUpperCase()}${words.last.slice(1)}, is left out. ` : "") +
      (fixed
        ? `The same for every list${entry.model.lengths ? "" : " of this length"}: this network is a fixed communication graph.`
        : "For this list only: the graph changes with the input.");
    byId("graph").replaceChildren(picture);
  }
}

/** Whether a model takes lists of this length; one without lengths takes all. */
const takes = ({ lengths }, length) => lengths === null || lengths.includes(length);

/** Lengths in ascending order, in words. */
function spanOf(lengths) {
  const [first, last] = [lengths[0], lengths.at(-1)];
  return lengths.length > 2 && last - first === lengths.length - 1 ? `${first} to ${last}` : lengths.join(", ");
}

const labelsOf = (entries) => entries.map(({ model }) => model.label.replace(",", "")).join(", ");

function rootMeanSquare(answer, truth) {
  return Math.sqrt(sum(answer.map((value, i) => (value - truth[i]) ** 2)) / truth.length);
}
