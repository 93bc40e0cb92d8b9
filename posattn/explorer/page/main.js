// The page: its content, its tabs and its theme.

const content = JSON.parse(byId("content").textContent);
const networks = new Map();

/** A promise of a network; its weights are read when it is asked for first. */
function networkAt(number) {
  if (!networks.has(number)) {
    const described = content.networks[number];
    const weights = tensorsOf(described.tensors, byId(`weights-${number}`).textContent);
    networks.set(number, weights.then((tensors) => new Network(described, tensors)));
  }
  return networks.get(number);
}

const TABS = ["answers", "programs", "results"];

function showTab(name, focus = false) {
  for (const tab of TABS) {
    const chosen = tab === name;
    byId(tab).hidden = !chosen;
    byId(`tab-${tab}`).setAttribute("aria-selected", String(chosen));
    byId(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
    if (chosen && focus) byId(`tab-${tab}`).focus();
  }
  fitPictures();
}

/** Draws again what is as wide as there is room. */
function fitPictures() {
  if (!byId("answers").hidden) answersView.update();
  if (!byId("programs").hidden && programsView.steps) programsView.go(programsView.step, true);
  if (!byId("results").hidden && resultsView.figure) resultsView.show();
}

function tabKey(event) {
  const shown = TABS.filter((tab) => !byId(`tab-${tab}`).hidden);
  const now = shown.findIndex((tab) => event.currentTarget.id === `tab-${tab}`);
  const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: -1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  showTab(shown.at(next % shown.length), true);
}

function switchTheme() {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

byId("source").textContent = `It shows ${content.source}.${content.note ? ` ${content.note}` : ""}`;
addEventListener("resize", fitPictures);
byId("theme").addEventListener("click", switchTheme);
byId("numbers-close").addEventListener("click", () => byId("numbers").close());
for (const tab of TABS) {
  byId(`tab-${tab}`).addEventListener("click", () => showTab(tab));
  byId(`tab-${tab}`).addEventListener("keydown", tabKey);
}

const answersView = new AnswersView(content, networkAt);
const programsView = new ProgramsView(content, networkAt);
const resultsView = new ResultsView(content);
const filled = { answers: content.subjects, programs: content.programs, results: content.results };
for (const tab of TABS) byId(`tab-${tab}`).hidden = filled[tab].length === 0;
const started = Promise.all([
  content.subjects.length ? answersView.pick(answersView.opening) : null,
  content.programs.length ? programsView.pick(0) : null,
]).then(
  () => document.documentElement.setAttribute("data-ready", "yes"),
  (error) => (byId("source").textContent = `It cannot run in this browser: ${error.message}`),
);
if (content.results.length) resultsView.pick(0);
showTab(TABS.find((tab) => filled[tab].length) ?? "answers");

// What a console, or a test, may ask: the networks by number, and everything that a run of one gives.
globalThis.posattn = {
  content,
  started,
  run: async (number, x) => (await networkAt(number)).run(x),
  answers: async (number, lists) => {
    const network = await networkAt(number);
    return lists.map((x) => network.run(x).answer);
  },
  truth: (task, x) => truthOf(TASKS, task, x),
  programTruth: (name, x) => truthOf(PROGRAMS, name, x),
};
