// Charts: lines with markers and bands, on linear or logarithmic axes.

const SMALLEST = 1e-16; // where an error of 0 is drawn on a logarithmic axis

const MARKERS = {
  o: "M3 0A3 3 0 1 1 -3 0A3 3 0 1 1 3 0z", s: "M-3 -3H3V3H-3z", "^": "M0 -3.6 3.4 2.8H-3.4z", v: "M0 3.6 3.4 -2.8H-3.4z",
  d: "M0 -4 2.8 0 0 4 -2.8 0z", P: "M-1.2 -3.5h2.4v2.3h2.3v2.4h-2.3v2.3h-2.4v-2.3h-2.3v-2.4h2.3z",
  X: "M-3 -1.6-1.6 -3 0 -1.4 1.6 -3 3 -1.6 1.4 0 3 1.6 1.6 3 0 1.4 -1.6 3 -3 1.6 -1.4 0z",
  "*": "M0 -4 1 -1.2 4 -1.2 1.6 .6 2.5 3.5 0 1.8 -2.5 3.5 -1.6 .6 -4 -1.2 -1 -1.2z", "<": "M-3.6 0 2.8 3.4V-3.4z", ">": "M3.6 0-2.8 3.4V-3.4z",
};

/** About `count` round numbers from low to high. */
function roundTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
  return ticks;
}

function powersOfTen(low, high, most) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const ticks = [];
  for (let power = first; power <= last; power += step) ticks.push(10 ** power);
  return ticks;
}

function tickText(value, log) {
  if (log && (value < 0.001 || value >= 1e5)) return `1e${Math.round(Math.log10(value))}`.replace("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/** An axis: from a value to a place between `from` and `to`, and its ticks. */
function axisOf(values, log, from, to, ticks) {
  const usable = values.filter((value) => Number.isFinite(value));
  let low = Math.min(...usable), high = Math.max(...usable);
  if (!usable.length) [low, high] = log ? [0.1, 1] : [0, 1];
  const given = Boolean(ticks);
  if (log) {
    if (!given && high / low < 10) [low, high] = [10 ** Math.floor(Math.log10(low) + 1e-9), 10 ** Math.ceil(Math.log10(high) + 1e-9 * (low !== high) + 1e-12)];
    if (low === high) [low, high] = [low / 3, high * 3];
  } else if (low === high) [low, high] = [low - 1, high + 1];
  const map = log ? Math.log10 : (value) => value;
  const pad = given ? 0.04 : log ? 0.02 : 0.06;
  const [a, b] = [map(low), map(high)];
  const span = (b - a) * (1 + 2 * pad);
  const place = (value) => from + ((map(value) - a + (b - a) * pad) / span) * (to - from);
  return { place, ticks: ticks ?? (log ? powersOfTen(low, high, 6) : roundTicks(low, high, 5)) };
}

/** Runs of points without a gap. */
function stretches(points) {
  const found = [[]];
  points.forEach((point) => (point[1] === null ? found.push([]) : found.at(-1).push(point)));
  return found.filter((own) => own.length);
}

const path = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/**
 * Series {label, colour, marker, points, published, thick}; a point is [x, y] or [x, median, 10th, 90th percentile]. Published
 * medians are dotted. With `names`, x is a name: markers stand side by side, and published ones are hollow.
 */
function chartPicture({ series, xlabel, ylabel, title, xlog = false, ylog = false, xticks = null, names = null, width = 400, height = 290 }) {
  const box = { left: 54, right: width - 10, top: 10, bottom: height - (names ? 88 : 42) };
  const safe = (value) => (value === null ? null : ylog ? Math.max(value, SMALLEST) : value);
  const all = series.map((own, k) => {
    const aside = names ? ((k - (series.length - 1) / 2) * 0.7) / series.length : 0;
    const moved = (points = []) => points.map(([x, ...ys]) => [names ? names.indexOf(x) + aside : x, ...ys.map(safe)]);
    return { ...own, points: moved(own.points), published: moved(own.published) };
  });
  const points = all.flatMap((own) => [...own.points, ...own.published]);
  const xs = names ? names.map((_, k) => k) : [...new Set(points.map(([x]) => x))].sort((a, b) => a - b);
  const few = xs.length <= 10 ? xs : null;
  const thinned = few?.filter((_, k) => !xlog || k % 2 === 0 || xs.length <= 5); // the numbers of a log axis crowd at its end
  const ends = names ? [-0.5, names.length - 0.5] : xs;
  const xAxis = axisOf(ends, xlog, box.left, box.right, xticks ?? (names ? xs : thinned));
  // Bands may reach far below medians that are all but 0; the axis ends where the medians do.
  const medians = points.map((point) => point[1]).filter((y) => y !== null);
  const floor = ylog ? Math.min(...medians) / 3 : -Infinity;
  const yAxis = axisOf(points.flatMap(([, ...ys]) => ys.filter((y) => y !== null && y >= floor)), ylog, box.bottom, box.top);
  const at = ([x, y]) => [xAxis.place(x), Math.min(box.bottom, yAxis.place(y))];

  const grid = yAxis.ticks.map((tick) => draw("line", { class: "grid", x1: box.left, x2: box.right, y1: yAxis.place(tick), y2: yAxis.place(tick) }));
  const yLabels = yAxis.ticks.map((tick) => draw("text", { class: "tick end", x: box.left - 6, y: yAxis.place(tick) + 3.5 }, tickText(tick, ylog)));
  const xLabels = xAxis.ticks.map((tick) => {
    const x = xAxis.place(tick);
    if (!names) return draw("text", { class: "tick middle", x, y: box.bottom + 16 }, tickText(tick, xlog));
    return draw("text", { class: "tick end", transform: `translate(${x + 4} ${box.bottom + 14}) rotate(-30)` }, names[tick]);
  });
  const marks = all.flatMap((own) => (names ? namedMarks(own, at) : lineMarks(own, at)));
  return draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": title },
    ...grid, ...yLabels, ...xLabels,
    draw("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    draw("text", { class: "label middle", x: (box.left + box.right) / 2, y: height - 6 }, xlabel),
    draw("text", { class: "label middle", transform: `translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)` }, ylabel),
    ...marks,
  );
}

function marker(own, point, at, hollow) {
  const [x, y] = at(point);
  const look = hollow ? { fill: "none", stroke: own.colour, "stroke-width": 1.3 } : { fill: own.colour };
  const text = `${own.label}${hollow ? ", published" : ""}: ${short(point[1])}`;
  return draw("path", { d: MARKERS[own.marker] ?? MARKERS.o, transform: `translate(${x} ${y}) scale(${hollow ? 1.4 : 1})`, ...look }, draw("title", {}, text));
}

function lineMarks(own, at) {
  const band = stretches(own.points.filter((point) => point.length === 4 && point[2] !== null && point[3] !== null)).map((points) => {
    const up = points.map(([x, , low]) => at([x, low]));
    const back = points.map(([x, , , high]) => at([x, high])).reverse();
    return draw("path", { d: `${path([...up, ...back])}z`, fill: own.colour, opacity: 0.16 });
  });
  const line = (points, style) => stretches(points).map((part) => draw("path", { d: path(part.map(at)), fill: "none", stroke: own.colour, ...style }));
  const shown = own.points.filter((point) => point[1] !== null);
  return [
    ...band,
    ...line(own.published, { "stroke-width": 1.5, "stroke-dasharray": "1.5 3.5", "stroke-linecap": "round" }),
    ...line(own.points, own.thick ? { "stroke-width": 7, opacity: 0.35, "stroke-linejoin": "round", "stroke-linecap": "round" } : { "stroke-width": 1.8 }),
    ...(own.thick ? [] : shown.map((point) => marker(own, point, at, false))),
  ];
}

function namedMarks(own, at) {
  const shown = own.points.filter((point) => point[1] !== null);
  const bars = shown
    .filter((point) => point[2] !== null && point[3] !== null && point.length === 4)
    .map(([x, , low, high]) => draw("path", { d: path([at([x, low]), at([x, high])]), stroke: own.colour, "stroke-width": 1.5 }));
  const theirs = own.published.filter((point) => point[0] > -0.6 && point[1] !== null);
  return [...bars, ...shown.map((point) => marker(own, point, at, false)), ...theirs.map((point) => marker(own, point, at, true))];
}
