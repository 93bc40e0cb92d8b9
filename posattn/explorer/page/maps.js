// Attention maps: a small picture for every layer and head, and its numbers on request.

// Viridis, which is read alike by colour-blind eyes and in grey, at eleven points between which colours are mixed.
const VIRIDIS = [
  [68, 1, 84], [72, 36, 117], [65, 68, 135], [53, 95, 141], [42, 120, 142], [33, 145, 140],
  [34, 168, 132], [68, 191, 112], [122, 209, 81], [189, 223, 38], [253, 231, 37],
];

function viridis(weight) {
  if (Number.isNaN(weight)) return [128, 128, 128]; // of a network whose training diverged
  const place = Math.min(1, Math.max(0, weight)) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return VIRIDIS[low].map((channel, k) => Math.round(channel + (place - low) * (VIRIDIS[low + 1][k] - channel)));
}

/** Colours from 0 to the weight `full`. */
function paint(canvas, map, rows, full) {
  canvas.width = canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(rows, rows);
  map.forEach((weight, k) => image.data.set([...viridis(weight / full), 255], 4 * k));
  context.putImageData(image, 0, 0);
}

/** The map's numbers in a window of their own, in its colours; `last` says what the row s is. */
function showNumbers(title, map, full, names, last) {
  const rows = names.length;
  const cell = (weight) => {
    const [red, green, blue] = viridis(weight / full);
    const colour = weight / full > 0.55 ? "#000" : "#fff";
    return make("td", { style: { "background-color": `rgb(${red},${green},${blue})`, color: colour } }, weight.toFixed(2));
  };
  const body = names.map((name, i) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...Array.from(map.subarray(i * rows, (i + 1) * rows), cell)),
  );
  byId("numbers-title").textContent = title;
  byId("numbers-about").textContent =
    `Row: the position that attends. Column: the position it attends to.${last ? ` s is ${last}.` : ""}`;
  byId("numbers-table").replaceChildren(
    make("tr", {}, make("th", {}), ...names.map((name) => make("th", { scope: "col" }, name))),
    ...body,
  );
  byId("numbers").showModal();
}

/** The weight that is yellow: the map's largest, or 1 for all maps. */
const fullOf = (map) => (byId("stretch").checked ? Math.max(...map) : 1);

/** Mean total variation between two sets of maps: 0 if nothing moved, 1 if every row attends elsewhere. */
function movement(maps, before, rows) {
  let total = 0, count = 0;
  maps.forEach((layer, l) =>
    layer.forEach((map, h) => {
      map.forEach((weight, k) => (total += Math.abs(weight - before[l][h][k]) / 2));
      count += rows;
    }),
  );
  return total / count;
}

/** The maps of one model. Pictures are made once and painted again when the list changes. */
class MapGrid {
  constructor(label, colour) {
    this.moved = make("span", { class: "moved" });
    this.body = make("div", { class: "map-layers" });
    this.element = make(
      "section",
      { class: "map-model", style: { "--colour": colour } },
      make("h3", {}, make("span", { class: "swatch" }), label, this.moved),
      this.body,
    );
    this.label = label;
    this.shape = "";
  }

  build(layers, heads, { pass, last }) {
    this.shape = `${layers} ${heads}`;
    this.maps = null;
    this.pictures = [];
    const layerBox = (_, l) => {
      const own = Array.from({ length: heads }, () => ({
        canvas: make("canvas", { "aria-hidden": "true" }),
        full: make("span", { class: "quiet", "aria-hidden": "true" }),
      }));
      this.pictures.push(own);
      const buttons = own.map(({ canvas, full }, h) => {
        const title = `${this.label}: ${pass} ${l + 1}, head ${h + 1}`;
        const open = () => showNumbers(title, this.maps[l][h], fullOf(this.maps[l][h]), this.names, last);
        return make("button", { class: "map", title: `${title} – show numbers`, "aria-label": title, onclick: open }, canvas, full);
      });
      const caption = make("figcaption", {}, `${pass} ${l + 1}`);
      return make("figure", { class: heads > 4 ? "many" : "" }, make("div", { class: "map-heads" }, ...buttons), caption);
    };
    this.body.replaceChildren(...Array.from({ length: layers }, layerBox));
  }

  show(result, words, moved, constant) {
    const { maps, rows, names } = result;
    if (!maps.length) return this.clear("a single number passes no loop");
    if (this.shape !== `${maps.length} ${maps[0].length}`) this.build(maps.length, maps[0].length, words);
    const stretched = byId("stretch").checked;
    // Positional maps are the same arrays for every list of one length: what is painted stays.
    const painted = (layer, l) => layer === this.maps?.[l] && stretched === this.stretched;
    maps.forEach((layer, l) => {
      if (painted(layer, l)) return;
      layer.forEach((map, h) => {
        const { canvas, full } = this.pictures[l][h];
        paint(canvas, map, rows, fullOf(map));
        full.textContent = `0 to ${fullOf(map).toFixed(2)}`;
      });
    });
    Object.assign(this, { maps, names, stretched });
    this.moved.textContent = constant
      ? "does not see the input: stands still"
      : `sees the input: moved ${Number.isFinite(moved) ? moved.toFixed(2) : "–"} from scale 1`;
    this.moved.classList.toggle("moving", !constant && moved >= 0.005);
  }

  clear(why) {
    this.shape = "";
    this.body.replaceChildren(make("p", { class: "quiet" }, why));
    this.moved.textContent = "";
  }
}
