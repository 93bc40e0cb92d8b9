// Charts: lines with markers and bands, on linear or logarithmic axes.

const SMALLEST = 1e-16; // where an error of 0 is drawn on a logarithmic axis

// Outlines around 0, by matplotlib's letters.
const MARKERS = {
  o: "M3 0A3 3 0 1 1 -3 0A3 3 0 1 1 3 0z",
  "^": "M0 -3.6 3.4 2.8H-3.4z",
  s: "M-3 -3H3V3H-3z",
  d: "M0 -4 2.8 0 0 4 -2.8 0z",
  v: "M0 3.6 3.4 -2.8H-3.4z",
  P: "M-1.2 -3.5h2.4v2.3h2.3v2.4h-2.3v2.3h-2.4v-2.3h-2.3v-2.4h2.3z",
  X: "M-3 -1.6-1.6 -3 0 -1.4 1.6 -3 3 -1.6 1.4 0 3 1.6 1.6 3 0 1.4 -1.6 3 -3 1.6 -1.4 0z",
  "*": "M0 -4 1 -1.2 4 -1.2 1.6 .6 2.5 3.5 0 1.8 -2.5 3.5 -1.6 .6 -4 -1.2 -1 -1.2z",
  "<": "M-3.6 0 2.8 3.4V-3.4z",
  ">": "M3.6 0-2.8 3.4V-3.4z",
};

/** About `count` round numbers from low to high. */
function roundTicks(low, high, count) {
  if (!Number.isFinite(high - low)) return []; // numbers near the largest there are
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

/** A tick in as few characters as it needs: 0.02, 1e5, 5e−4. */
function tickText(value) {
  const number = Number(value.toPrecision(4)), size = Math.abs(number);
  const text = size && (size < 0.001 || size >= 1e5) ? number.toExponential() : String(number);
  return text.replace("e+", "e").replaceAll("-", "−");
}

/** The ends of an axis that shows `values`: on a logarithmic axis at least a power of ten apart, else never so close that an error of a hundredth fills it. */
function endsOf(values, log) {
  const shown = values.filter(Number.isFinite);
  if (!shown.length) return log ? [0.1, 1] : [0, 1];
  const low = Math.min(...shown), high = Math.max(...shown);
  if (log && high < 10 * low) return [10 ** Math.floor(Math.log10(low)), 10 ** (Math.floor(Math.log10(high)) + 1)];
  const size = Math.max(Math.abs(low), Math.abs(high));
  const room = high - low <= 0.01 * size ? Math.max(1, size / 10) : 0;
  return [low - room, high + room];
}

/** An axis: from a value to a place between `from` and `to`, and its ticks. */
function axisOf([low, high], log, from, to, ticks) {
  const map = log ? Math.log10 : (value) => value;
  const margin = 0.04 * (map(high) - map(low));
  const [start, end] = [map(low) - margin, map(high) + margin];
  const place = (value) => from + ((map(value) - start) / (end - start)) * (to - from);
  return { place, ticks: ticks ?? (log ? powersOfTen(low, high, 6) : roundTicks(low, high, 5)) };
}

/** Runs of points without a gap. */
function stretches(points) {
  const found = [[]];
  points.forEach((point) => (point[1] === null ? found.push([]) : found.at(-1).push(point)));
  return found.filter((own) => own.length);
}

const path = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** The ticks of an x axis that shows these numbers: of many, round ones, and on a logarithmic axis those far enough apart. */
function xTicks(xs, log) {
  if (xs.length > 10) return null;
  let last = 0;
  return xs.filter((x) => {
    const shown = !log || x >= 1.5 * last;
    if (shown) last = x;
    return shown;
  });
}

/** Series with names in place of x at whole numbers, side by side, and with what cannot be drawn on the y axis moved onto it. */
function placed(series, names, ylog) {
  const safe = (value) => (value !== null && ylog ? Math.max(value, SMALLEST) : value);
  return series.map((own, k) => {
    const aside = names ? ((k - (series.length - 1) / 2) * 0.7) / series.length : 0;
    const moved = (points = []) => points.map(([x, ...ys]) => [names ? names.indexOf(x) + aside : x, ...ys.map(safe)]);
    return { ...own, points: moved(own.points), published: moved(own.published) };
  });
}

/**
 * Series {label, colour, marker, dash, points, published, thick}; a point is [x, y] or [x, median, 10th, 90th percentile]. Published
 * medians are dotted. `yends` are the ends of the y axis, where the points do not decide. With `names`, x is a name: markers stand side by side, and published ones are hollow.
 */
function chartPicture(chart) {
  const { xlabel, ylabel, title, xlog = false, ylog = false, yends = null, names = null, width, height = 290 } = chart;
  const turned = names?.some((name) => name.length > 6); // long names stand at an angle
  const box = { left: 46, right: width - 10, top: 28, bottom: height - (turned ? 64 : 20) - (xlabel ? 22 : 0) };
  const series = placed(chart.series, names, ylog);
  const points = series.flatMap((own) => [...own.points, ...own.published]);
  const xs = names ? names.map((_, k) => k) : [...new Set(points.map(([x]) => x))].sort((a, b) => a - b);
  const xEnds = names ? [-0.5, names.length - 0.5] : endsOf(xs, false);
  const xAxis = axisOf(xEnds, xlog, box.left, box.right, chart.xticks ?? (names ? xs : xTicks(xs, xlog)));
  // Bands may reach far below medians that are all but 0; the axis ends near the lowest median.
  const floor = ylog ? Math.min(...points.map(([, y]) => y ?? Infinity)) / 3 : -Infinity;
  const ys = points.flatMap(([, ...own]) => own.filter((y) => y !== null && y >= floor));
  const yAxis = axisOf(yends ?? endsOf(ys, ylog), ylog, box.bottom, box.top);
  const at = ([x, y]) => [xAxis.place(x), Math.min(box.bottom, yAxis.place(y))];

  const grid = yAxis.ticks.flatMap((tick) => {
    const y = yAxis.place(tick);
    return [
      draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y }),
      draw("text", { class: "tick end", x: box.left - 6, y: y + 3.5 }, tickText(tick)),
    ];
  });
  const below = xAxis.ticks.map((tick) => {
    const x = xAxis.place(tick);
    if (!turned) return draw("text", { class: "tick middle", x, y: box.bottom + 16 }, names?.[tick] ?? tickText(tick));
    return draw("text", { class: "tick end", transform: `translate(${x + 4} ${box.bottom + 14}) rotate(-30)` }, names[tick]);
  });
  return draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, class: "chart", role: "img", "aria-label": title },
    ...grid,
    ...below,
    draw("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    draw("text", { class: "label middle", x: (box.left + box.right) / 2, y: height - 6 }, xlabel),
    draw("text", { class: "label", y: 12 }, `${ylabel}${ylog ? " (logarithmic)" : ""}`),
    ...series.flatMap((own) => (names ? namedMarks(own, at) : lineMarks(own, at))),
  );
}

function marker(own, point, at, hollow) {
  const [x, y] = at(point);
  const look = hollow ? { fill: "none", stroke: own.colour, "stroke-width": 1.3 } : { fill: own.colour };
  const transform = `translate(${x} ${y}) scale(${hollow ? 1.4 : 1})`;
  const text = `${own.label}${hollow ? ", published" : ""}: ${short(point[1])}`;
  return draw("path", { d: MARKERS[own.marker] ?? MARKERS.o, transform, ...look }, draw("title", {}, text));
}

const hasBand = (point) => point.length === 4 && point[2] !== null && point[3] !== null;
const hasValue = (point) => point[1] !== null;
const THICK = { "stroke-width": 7, opacity: 0.35, "stroke-linejoin": "round", "stroke-linecap": "round" };
const DASHES = { "--": "6 3", "-.": "7 2.5 1.5 2.5" }; // those of variants, which share a colour
const DOTTED = { "stroke-width": 1.5, "stroke-dasharray": "1.5 3.5", "stroke-linecap": "round" };

function lineMarks(own, at) {
  const bands = stretches(own.points.filter(hasBand)).map((points) => {
    const there = points.map(([x, , low]) => at([x, low]));
    const back = points.map(([x, , , high]) => at([x, high])).reverse();
    return draw("path", { d: `${path([...there, ...back])}z`, fill: own.colour, opacity: 0.16 });
  });
  const line = (points, look) =>
    stretches(points).map((part) => draw("path", { d: path(part.map(at)), fill: "none", stroke: own.colour, ...look }));
  const markers = own.thick ? [] : own.points.filter(hasValue).map((point) => marker(own, point, at, false));
  return [...bands, ...line(own.published, DOTTED), ...line(own.points, own.thick ? THICK : { "stroke-width": 1.8, "stroke-dasharray": DASHES[own.dash] ?? "none" }), ...markers];
}

function namedMarks(own, at) {
  const bars = own.points
    .filter(hasBand)
    .map(([x, , low, high]) => draw("path", { d: path([at([x, low]), at([x, high])]), stroke: own.colour, "stroke-width": 1.5 }));
  const known = own.published.filter((point) => point[0] > -0.6 && hasValue(point)); // those whose name is on the axis
  return [
    ...bars,
    ...own.points.filter(hasValue).map((point) => marker(own, point, at, false)),
    ...known.map((point) => marker(own, point, at, true)),
  ];
}
