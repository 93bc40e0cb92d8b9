// Second view: a compiled program round by round. The network itself runs: a layer is a round, a head a memory position, and
// the state's row i is the memory of machine i, with the machine's number in the last column.

const PAUSE = 900; // milliseconds between steps that play by themselves

class ProgramsView {
  constructor(content, networkAt) {
    this.programs = content.programs;
    this.networkAt = networkAt;
    this.step = 0;
    this.timer = null;
    const name = ({ name: own, label, network }) => {
      const machines = content.networks[network].positions - 1; // the last position is the sink
      return `${label === own ? "" : `${label}: `}${own} on ${counted(machines, "machine")}`;
    };
    options(byId("program"), this.programs.map(name));
    byId("program").addEventListener("change", () => this.pick(Number(byId("program").value)));
    byId("example").addEventListener("click", () => this.example(this.exampleNow + 1));
    byId("first").addEventListener("click", () => this.go(0));
    byId("back").addEventListener("click", () => this.go(this.step - 1));
    byId("forward").addEventListener("click", () => this.go(this.step + 1));
    byId("last").addEventListener("click", () => this.go(Infinity));
    byId("play").addEventListener("click", () => this.play());
    byId("step").addEventListener("input", () => this.go(Number(byId("step").value)));
  }

  async pick(number) {
    this.stop();
    const program = this.programs[number];
    this.wanted = number;
    const network = await this.networkAt(program.network);
    if (this.wanted !== number) return; // another program was picked while the weights were read
    Object.assign(this, { program, network, step: 0 });
    byId("program-title").textContent = program.title ? `Computes: ${program.title}.` : "";
    byId("program-size").textContent =
      `Compiled, not trained: ${counted(network.layers, "layer")}, ${counted(network.heads, "head")}, ` +
      `${network.parameters.toLocaleString("en")} weights.`;
    this.example(0);
  }

  example(number) {
    const { examples } = this.program;
    this.exampleNow = number % examples.length;
    this.known = this.program.answers[this.exampleNow]?.flat(); // until a number is changed
    this.showInputs(examples[this.exampleNow].flat());
    this.restart();
  }

  /** What the boxes of a machine take: an input of a program that reads letters is a letter, then numbers. */
  kinds() {
    const { ranges, alphabet } = this.program;
    return ranges.map(([low, high, whole], place) => ({
      low, high, whole, step: whole ? 1 : 0.1, letters: place === 0 ? alphabet : "",
    }));
  }

  showInputs(x) {
    const kinds = this.kinds();
    this.given = [...x];
    const box = (machine, place) => {
      const k = machine * kinds.length + place;
      const name = `Machine ${machine + 1}${kinds.length > 1 ? `, input ${place + 1}` : ""}`;
      const take = (value) => {
        this.given[k] = value;
        this.known = null;
        this.restart();
      };
      const made = new NumberBox(name, kinds[place], take).set(x[k]);
      made.input.addEventListener("input", () => made.read());
      return made;
    };
    const entry = (machine) => {
      const number = make("span", { class: "quiet", "aria-hidden": "true" }, machine + 1);
      const boxes = kinds.map((_, place) => box(machine, place));
      return [make("div", { class: "entry" }, ...boxes.map(({ input }) => input), number), ...boxes.map(({ problem }) => problem)];
    };
    showEntries(byId("program-input"), this.program.machines, entry);
    byId("program-range").textContent = `Each machine is given ${kinds.map(wordsFor).join(" and ")}.`;
  }

  /** Runs the program on what is given. If it breaks, what is shown stays. */
  restart() {
    byId("program-problem").textContent = "";
    try {
      this.steps = stepsOf(this.network, this.given);
    } catch (error) {
      byId("program-problem").textContent = `${error.message}. The steps are still those of the last input that worked.`;
      return this.stop();
    }
    this.x = [...this.given];
    byId("step").max = this.steps.length - 1;
    this.go(Math.min(this.step, this.steps.length - 1));
  }

  play() {
    if (this.timer !== null) return this.stop();
    if (this.step >= this.steps.length - 1) this.go(0);
    byId("play").textContent = "Pause";
    this.timer = setInterval(() => {
      this.go(this.step + 1, true);
      if (this.step >= this.steps.length - 1) this.stop();
    }, PAUSE);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    byId("play").textContent = "Play";
  }

  go(step, playing = false) {
    if (!playing) this.stop();
    this.step = Math.min(Math.max(0, step), this.steps.length - 1);
    const now = this.steps[this.step];
    byId("step").value = this.step;
    byId("step").setAttribute("aria-valuetext", now.title);
    byId("step-title").textContent = now.title;
    byId("step-about").textContent = now.about;
    for (const id of ["first", "back"]) byId(id).disabled = this.step === 0;
    for (const id of ["forward", "last"]) byId(id).disabled = this.step === this.steps.length - 1;
    this.showMemory(now);
    this.showRounds(now);
    this.showAnswer();
  }

  showMemory(now) {
    const { embed, positions } = this.network;
    const cells = embed - 1, machines = positions - 1;
    const done = this.step === this.steps.length - 1;
    const ends = done ? outputCells(this.network) : [];
    // Where the letters of a program stand: in its input and in its answer. Between them machines reckon with their numbers.
    const lettered = (c) => (done ? ends.includes(c) : this.step === 0 && c === 0);
    const answers = (i, c) => ends.includes(c) && i < this.network.n; // spare machines have none
    const before = this.steps[Math.max(0, this.step - 1)].memory;
    const named = variablesAt(this.program.columns, now);
    const heading = (_, c) => {
      const answer = ends.includes(c);
      return make("th", { scope: "col", class: answer ? "output" : "" }, answer ? "answer" : named[c] ?? c + 1);
    };
    const cell = (i) => (_, c) => {
      const value = now.memory[i * embed + c];
      const changed = value !== before[i * embed + c];
      const source = now.sources?.[c]?.[i];
      const kinds = [changed && (value === 0 ? "cleared" : "changed"), value === 0 && "blank", answers(i, c) && "output"];
      const title = source === undefined ? null : `from machine ${source + 1}`;
      return make("td", { class: kinds.filter(Boolean).join(" "), title }, lettered(c) ? this.word(value) : short(value, 6));
    };
    const row = (_, i) => make("tr", {}, make("th", { scope: "row" }, i + 1), ...Array.from({ length: cells }, cell(i)));
    const head = make("tr", {}, make("th", { scope: "col" }, "machine"), ...Array.from({ length: cells }, heading));
    byId("memory").replaceChildren(make("thead", {}, head), make("tbody", {}, ...Array.from({ length: machines }, row)));
  }

  showRounds(now) {
    const rounds = this.network.layers - 1;
    const names = Array.from({ length: this.network.positions - 1 }, (_, i) => String(i + 1));
    const edges = this.steps.filter(({ phase }) => phase === "communicate").flatMap(({ edges: own }) => own);
    const active = ({ layer }) => now.phase === "communicate" && layer === now.round - 1;
    const look = (edge) => ({
      colour: active(edge) ? "var(--standard)" : edge.from === edge.to ? "var(--quiet)" : "var(--positional)",
      stroke: active(edge) ? 2.4 : edge.from === edge.to ? 0.8 : 1.4,
      opacity: active(edge) ? 1 : edge.layer < now.round ? 0.85 : 0.3,
      active: active(edge),
    });
    const columns = Array.from({ length: rounds + 1 }, (_, r) => (r ? `round ${r}` : "start"));
    const box = byId("rounds");
    const label = `messages of ${this.program.name}, round by round`;
    const picture = graphPicture({ edges, names, columns, look, label, room: box.clientWidth });
    box.replaceChildren(picture);
    box.scrollLeft = picture.dataset.across * now.round - box.clientWidth / 2;
  }

  /** A number of the input or the answer as the program means it: a letter, where it reads letters. */
  word(value) {
    const { alphabet } = this.program;
    return alphabet ? (alphabet[Math.round(value)] ?? "~") : short(value, 6);
  }

  showAnswer() {
    const done = this.step === this.steps.length - 1;
    byId("program-answer").hidden = !done;
    if (!done) return;
    const { answer } = this.network.run(this.x);
    const truth = truthOf(PROGRAMS, this.program.name, this.x) ?? this.known;
    const off = truth ? Math.max(...truth.map((value, i) => Math.abs(value - answer[i]))) : null;
    const same = off ? `the same to within ${short(off, 2)}` : "exactly the same";
    byId("program-answer").textContent =
      `Answer: ${answer.map((value) => this.word(value)).join("  ")}. ` +
      (truth ? `The obvious way gives ${same}.` : "Nothing on this page says what it should be.");
  }
}

/** The variable in every memory position, of a program that names them. A round's messages leave variables in their places. */
function variablesAt(columns, { phase, round }) {
  const at = columns[phase === "communicate" ? round - 1 : round];
  return phase === "start" || !at ? {} : Object.fromEntries(Object.entries(at).map(([name, column]) => [column, name]));
}

/** The memory positions that hold the answer. */
function outputCells(network) {
  const { rows, cols, data, starts, columns } = network.weights["decoder.weight"];
  const cellOf = (_, row) =>
    data ? data.subarray(row * cols, (row + 1) * cols).findIndex((value) => value !== 0) : columns[starts[row]];
  return Array.from({ length: rows }, cellOf);
}

/** What happens, step by step: memories, and for a communication who receives from whom. */
function stepsOf(network, x) {
  const { maps, states, received, rows } = network.run(x);
  const steps = [
    {
      title: "Given", phase: "start", round: 0, memory: states[0],
      about: "Every machine holds its input; the rest of its memory is blank.",
    },
    { title: "Start", phase: "compute", round: 0, memory: states[1], about: "Every machine computes on its own memory." },
  ];
  for (let round = 1; round < network.layers; round++) {
    const sources = maps[round].map((map) => Array.from({ length: rows - 1 }, (_, i) => heardFrom(map, i, rows)));
    const words = sources.flat().filter((from) => from !== undefined).length;
    const title = `Round ${round} of ${network.layers - 1}`;
    steps.push({
      title: `${title}: communicate`, phase: "communicate", round, memory: received[round], sources,
      edges: messages(sources, round - 1),
      about: `Layer ${round + 1}'s attention brings ${words} words; each keeps its position, and what receives none is blank.`,
    });
    steps.push({
      title: `${title}: compute`, phase: "compute", round, memory: states[round + 1],
      about: `Layer ${round + 1}'s MLP computes the new memory, at every machine.`,
    });
  }
  return steps;
}

/** An arrow for every pair of machines of which one hears from the other, at any memory position. */
function messages(sources, layer) {
  const pairs = new Map();
  sources.forEach((own) =>
    own.forEach((from, to) => {
      if (from !== undefined) pairs.set(`${from} ${to}`, { layer, from, to });
    }),
  );
  return [...pairs.values()];
}

/** The machine that a row attends to; none where it is the sink, which is the last position and blank. */
function heardFrom(map, to, rows) {
  let best = 0;
  for (let from = 1; from < rows; from++) if (map[to * rows + from] > map[to * rows + best]) best = from;
  return best === rows - 1 ? undefined : best;
}
