// Communication as a graph: positions down, layers or rounds from left to right, an arrow for every weight above a threshold.

const GRAPH = { margin: 26, foot: 22, narrow: 62, wide: 120, many: 20 };

/**
 * Edges {layer, from, to, head, weight} of attention maps, among the first `shown` of their rows: at every place the largest
 * weight of the layer's heads.
 */
function edgesOf(maps, rows, shown, least) {
  const edges = [];
  maps.forEach((heads, layer) => {
    for (let to = 0; to < shown; to++) {
      for (let from = 0; from < shown; from++) {
        const weights = heads.map((map) => map[to * rows + from]);
        const weight = Math.max(...weights);
        if (weight >= least) edges.push({ layer, from, to, head: weights.indexOf(weight), weight });
      }
    }
  });
  return edges;
}

/**
 * The picture. `names` are the positions', `columns` what stands below each column of them, and `look(edge)` gives the
 * stroke's colour, width and opacity and whether the edge is drawn last.
 */
function graphPicture({ edges, names, columns, look, label, room }) {
  const { margin, foot } = GRAPH;
  const [down, radius] = names.length > GRAPH.many ? [17, 7] : [30, 10];
  // As wide as there is room, within what can be read; wider graphs scroll.
  const across = Math.min(GRAPH.wide, Math.max(GRAPH.narrow, (room - 2 * margin) / (columns.length - 1)));
  const x = (column) => margin + across * column;
  const y = (i) => margin + down * i;
  const width = 2 * margin + across * (columns.length - 1);
  const height = 2 * margin + down * (names.length - 1) + foot;
  const line = (edge) => {
    const dx = across, dy = y(edge.to) - y(edge.from);
    const length = Math.hypot(dx, dy);
    const cut = radius / length;
    const tip = (radius + 3) / length;
    const angle = (Math.atan2(dy, dx) * 180) / Math.PI;
    const weight = edge.weight === undefined ? "" : `: ${edge.weight.toFixed(2)}`;
    const { colour, stroke, opacity, active } = look(edge);
    return draw(
      "g",
      { stroke: colour, fill: colour, opacity, "data-active": active ? "yes" : null },
      draw("line", {
        x1: x(edge.layer) + dx * cut, y1: y(edge.from) + dy * cut,
        x2: x(edge.layer + 1) - dx * tip, y2: y(edge.to) - dy * tip, "stroke-width": stroke,
      }),
      draw("path", {
        d: "M0 0 -6 -3.2 -6 3.2z", stroke: "none",
        transform: `translate(${x(edge.layer + 1) - dx * cut} ${y(edge.to) - dy * cut}) rotate(${angle})`,
      }),
      draw("title", {}, `${names[edge.from]} → ${names[edge.to]}${weight}`),
    );
  };
  const nodes = columns.flatMap((_, column) =>
    names.map((name, i) =>
      draw(
        "g",
        { class: "node" },
        draw("circle", { cx: x(column), cy: y(i), r: radius }),
        draw("text", { x: x(column), y: y(i) + 3.5 }, name),
      ),
    ),
  );
  const feet = columns.map((name, column) => draw("text", { class: "foot", x: x(column), y: height - 6 }, name));
  const drawn = [...edges].sort((a, b) => Number(look(a).active ?? 0) - Number(look(b).active ?? 0));
  return draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, class: "graph", "data-across": across, role: "img", "aria-label": label },
    ...drawn.map(line), ...nodes, ...feet,
  );
}

const HEAD_COLOURS = ["var(--positional)", "var(--standard)", "var(--scale-exact)", "var(--compiled)"];

/** The graph of a network's run at a threshold. A sink that is always blank sends nothing, and is left out. */
function attentionPicture({ maps, rows, names: all }, { pass, blank }, least, label, room) {
  const names = all.slice(0, rows - Number(blank));
  const edges = edgesOf(maps, rows, names.length, least);
  const columns = ["input", ...maps.map((_, l) => `${pass} ${l + 1}`)];
  const heads = maps[0]?.length ?? 0;
  const look = ({ from, to, head, weight }) => ({
    colour: from === to ? "var(--quiet)" : heads > HEAD_COLOURS.length ? HEAD_COLOURS[0] : HEAD_COLOURS[head],
    stroke: 0.6 + 2.2 * weight,
    opacity: 0.25 + 0.75 * weight,
  });
  return { edges, picture: graphPicture({ edges, names, columns, look, label, room }) };
}
