// Third view: the figures of the result store, ours against the published.

// The figures' colours, as this page has them in light and in dark.
const THEMED = {
  "#0072B2": "var(--positional)", "#009E73": "var(--scale-exact)", "#D55E00": "var(--standard)", "#CC79A7": "var(--compiled)",
  "#E69F00": "var(--other-0)", "#56B4E9": "var(--other-1)", "#000000": "var(--other-2)", "#999999": "var(--other-3)",
  "#7F3C00": "var(--other-4)",
};
const themed = (series) => ({ ...series, colour: THEMED[series.colour] ?? series.colour });

const MOST = 6; // panels at once; a figure with more opens with one of its views

class ResultsView {
  constructor(content) {
    this.figures = content.results;
    this.hidden = new Set();
    const called = ({ name, title, scale }) => `${name}: ${title}${scale === "paper" ? "" : ` (${scale})`}`;
    options(byId("figure"), this.figures.map(called));
    byId("figure").addEventListener("change", () => this.pick(Number(byId("figure").value)));
  }

  pick(number) {
    this.hidden.clear();
    this.figure = this.figures[number];
    const { panels, opens } = this.figure;
    const views = panels.length > MOST ? [...new Set(panels.map(({ view }) => view))] : [];
    this.view = views.length > 1 ? opens : null;
    byId("views").hidden = views.length < 2;
    const all = `all ${panels.length} panels`;
    pills(byId("view-choice"), "view", [...views, all], views.indexOf(opens), (k) => {
      this.view = views[k] ?? null;
      this.show();
    });
    const { reference, scale, runs } = this.figure;
    const alone = scale === "published";
    byId("figure-about").textContent =
      `${reference[0].toUpperCase()}${reference.slice(1)}. ${alone ? "Published medians alone: the store has no runs of it." : `${runs}, at ${scale} scale.`}`;
    const [ours, theirs] = this.figure.bars
      ? ["Filled markers: our medians, with bars from the 10th to the 90th percentile.", "Hollow: published medians."]
      : ["Lines: our medians, with bands from the 10th to the 90th percentile.", "Dotted: published medians."];
    const known = this.figure.panels.some(({ series }) => series.some((own) => own.published?.length));
    byId("figure-key").textContent = [alone ? "" : ours, known ? theirs : ""].join(" ").trim();
    this.show();
  }

  /** The panels of the chosen view, or all. */
  panels() {
    return this.figure.panels.filter(({ view }) => this.view === null || view === this.view);
  }

  series() {
    return [...new Map(this.panels().flatMap(({ series }) => series).map((own) => [own.label, own])).values()];
  }

  show() {
    byId("legend").replaceChildren(...this.series().map((own) => this.legendKey(themed(own))));
    byId("panels").classList.toggle("wide", this.figure.bars);
    const panels = this.panels();
    const figures = panels.map(({ title }) => make("figure", {}, make("figcaption", {}, title)));
    byId("panels").replaceChildren(...figures);
    figures.forEach((figure, k) => figure.append(this.chart(panels[k], figure.clientWidth)));
    this.showTable();
  }

  legendKey({ label, colour, marker: shape }) {
    const shown = !this.hidden.has(label);
    const toggle = () => {
      if (shown) this.hidden.add(label);
      else this.hidden.delete(label);
      this.show();
      [...byId("legend").children].find((key) => key.dataset.label === label).focus();
    };
    const mark = draw("path", { d: MARKERS[shape] ?? MARKERS.o, fill: colour });
    const picture = draw("svg", { viewBox: "-5 -5 10 10", width: 12, height: 12, "aria-hidden": "true" }, mark);
    const attributes = { class: "key", "aria-pressed": String(shown), "data-label": label, onclick: toggle };
    return make("button", attributes, picture, label);
  }

  /** As wide as there is room. */
  chart({ title, ylabel, ylog, yends, series }, room) {
    const shown = series.filter(({ label }) => !this.hidden.has(label)).map(themed);
    const { bars, xlabel, xlog } = this.figure;
    const places = series.flatMap(({ points, published }) => [...points, ...published]).map(([x]) => x);
    const named = bars ? { names: [...new Set(places)], height: 340 } : {};
    return chartPicture({ series: shown, xlabel, ylabel, xlog, ylog, yends, title, width: Math.max(300, room), ...named });
  }

  /** Ours beside the published, where both are known. */
  showTable() {
    const rows = this.panels().flatMap(({ title, series }) =>
      series.flatMap(({ label, points, published }) =>
        points.flatMap(([x, ours]) => {
          const theirs = published.find(([place]) => place === x);
          if (!theirs || ours === null) return [];
          const place = typeof x === "number" ? short(x, 6) : x;
          const cells = [title, label, place, short(ours), short(theirs[1]), (ours / theirs[1]).toFixed(2)];
          return [make("tr", {}, ...cells.map((cell) => make("td", {}, cell)))];
        }),
      ),
    );
    const heads = ["panel", "series", "x", "ours", "published", "ratio"].map((name) => make("th", { scope: "col" }, name));
    byId("against").hidden = rows.length === 0;
    byId("against-table").replaceChildren(make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
  }
}
