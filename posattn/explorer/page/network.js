// Eq. 1 in float64: the whole network, every architecture, as posattn/model.py has it.
// Letters: N positions in use, d width, H heads; matrices are rows after rows in one Float64Array.

/** x W^T + b for the given rows of x. */
function affine(x, rows, { weight, bias }) {
  const out = new Float64Array(rows * weight.rows);
  const multiply = weight.data ? multiplyDense : multiplySparse;
  multiply(x, rows, weight, out);
  if (bias) {
    for (let i = 0, k = 0; i < rows; i++) for (let j = 0; j < weight.rows; j++, k++) out[k] += bias.data[j];
  }
  return out;
}

/** Three rows of x with two of W at once: what is read serves several products. */
function multiplyDense(x, rows, { rows: outer, cols: inner, data }, out) {
  const dot = (i, j) => {
    let sum = 0;
    for (let k = 0; k < inner; k++) sum += x[i * inner + k] * data[j * inner + k];
    out[i * outer + j] = sum;
  };
  const [threes, twos] = [rows - (rows % 3), outer - (outer % 2)];
  for (let i = 0; i < threes; i += 3) {
    for (let j = 0; j < twos; j += 2) {
      let a = 0, b = 0, c = 0, d = 0, e = 0, f = 0;
      for (let k = 0, from = i * inner, at = j * inner; k < inner; k++, from++, at++) {
        const u = x[from], v = x[from + inner], w = x[from + 2 * inner];
        const p = data[at], q = data[at + inner];
        a += u * p, b += u * q;
        c += v * p, d += v * q;
        e += w * p, f += w * q;
      }
      const to = i * outer + j;
      out[to] = a, out[to + 1] = b;
      out[to + outer] = c, out[to + outer + 1] = d;
      out[to + 2 * outer] = e, out[to + 2 * outer + 1] = f;
    }
    for (let j = twos; j < outer; j++) dot(i, j), dot(i + 1, j), dot(i + 2, j);
  }
  for (let i = threes; i < rows; i++) for (let j = 0; j < outer; j++) dot(i, j);
}

function multiplySparse(x, rows, { rows: outer, cols: inner, starts, columns, values }, out) {
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < outer; j++) {
      let sum = 0;
      for (let k = starts[j]; k < starts[j + 1]; k++) sum += x[i * inner + columns[k]] * values[k];
      out[i * outer + j] = sum;
    }
  }
}

function relu(x) {
  for (let k = 0; k < x.length; k++) if (x[k] < 0) x[k] = 0;
  return x;
}

/** [x, y] row by row. */
function besides(x, y, rows) {
  const a = x.length / rows, b = y.length / rows;
  const out = new Float64Array(rows * (a + b));
  for (let i = 0; i < rows; i++) {
    out.set(x.subarray(i * a, (i + 1) * a), i * (a + b));
    out.set(y.subarray(i * b, (i + 1) * b), i * (a + b) + a);
  }
  return out;
}

/** Rotary embedding: turns the pair (k, k + d//2) of every head's vector at position i by i / 10000^(2k/d). */
function rotated(x, positions, heads) {
  const d = x.length / positions.length / heads;
  const half = Math.floor(d / 2);
  positions.forEach((position, i) => {
    for (let h = 0; h < heads; h++) {
      const start = (i * heads + h) * d;
      for (let k = 0; k < half; k++) {
        const angle = position * 10000 ** ((-2 * k) / d);
        const first = x[start + k], second = x[start + half + k];
        x[start + k] = first * Math.cos(angle) - second * Math.sin(angle);
        x[start + half + k] = first * Math.sin(angle) + second * Math.cos(angle);
      }
    }
  });
  return x;
}

/** The logits of a row become its weights: softmax, or hardmax, over the keys that `open` lets it see. */
function weigh(row, open, hard) {
  let top = -Infinity;
  row.forEach((logit, j) => {
    if (open(j) && logit > top) top = logit;
  });
  let total = 0;
  row.forEach((logit, j) => {
    row[j] = !open(j) ? 0 : hard ? Number(logit === top) : Math.exp(logit - top);
    total += row[j];
  });
  if (!hard) row.forEach((weight, j) => (row[j] = weight / total));
}

class Network {
  constructor(described, tensors) {
    Object.assign(this, described);
    this.weights = tensors;
    this.ready = new Map(); // positional attention of lists of one length: it is computed once
  }

  linear(name) {
    return { weight: this.weights[`${name}.weight`], bias: this.weights[`${name}.bias`] };
  }

  /** Where the entries of a list sit: the first places, and the scratchpad at the end, if there is one. */
  positionsOf(length) {
    if (this.anyLength) {
      if (length < 1) throw new Error("the list is empty; this network takes 1 number or more");
      return Array.from({ length }, (_, i) => i);
    }
    if (this.compiled ? length !== this.n : length < 1 || length > this.n) {
      throw new Error(`the list has ${length} numbers; this network takes ${this.compiled ? "" : "1 to "}${this.n}`);
    }
    if (this.spare) return Array.from({ length: this.positions }, (_, i) => i);
    return [...Array.from({ length }, (_, i) => i), this.n];
  }

  check(x) {
    if (!x.every(Number.isFinite)) throw new Error("the list must hold finite numbers");
    this.bounds?.forEach(([low, high], place) => {
      const own = x.filter((_, k) => k % this.inputs === place);
      if (own.some((value) => value < low || value > high)) {
        throw new Error(`takes numbers ${fromTo(low, high)}`);
      }
    });
  }

  /** What the encoder reads. */
  features(x, positions) {
    const rows = positions.length;
    if (this.compiled) {
      const cols = this.inputs + 1;
      const out = new Float64Array(rows * cols);
      x.forEach((value, k) => (out[Math.floor(k / this.inputs) * cols + (k % this.inputs)] = value));
      positions.forEach((position, i) => (out[i * cols + cols - 1] = position));
      return out;
    }
    if (this.diagonal) {
      const out = new Float64Array(rows * this.positions);
      x.forEach((value, i) => (out[i * this.positions + positions[i]] = value));
      return out;
    }
    const numbers = Float64Array.from(this.anyLength ? x : [...x, 0]);
    return this.encoded ? besides(numbers, this.encodings(positions), rows) : numbers;
  }

  /** The rows of P. */
  encodings(positions) {
    const { cols, data, starts, columns, values } = this.weights.P;
    const out = new Float64Array(positions.length * cols);
    positions.forEach((position, i) => {
      if (data) out.set(data.subarray(position * cols, (position + 1) * cols), i * cols);
      else for (let k = starts[position]; k < starts[position + 1]; k++) out[i * cols + columns[k]] = values[k];
    });
    return out;
  }

  /** Whether A is the same for every list of one length. */
  get fixed() {
    return this.attends === "position" || this.attends === "offset";
  }

  /** What is computed once for a pass, as long as lists keep their length. */
  once(key, rows, compute) {
    if (this.readyFor !== rows) this.ready.clear();
    this.readyFor = rows;
    if (!this.ready.has(key)) this.ready.set(key, compute());
    return this.ready.get(key);
  }

  /**
   * A of one pass: `maps`, a Float64Array (N, N) for every head, and where positions stay `share`, how much of the layer's
   * output each takes. Eq. 3 from the stored logits, Eq. 2 from the state.
   */
  attention({ layer, loop }, state, positions) {
    const rows = positions.length;
    if (loop) {
      return this.once(`${loop.stride} ${loop.stage}`, rows, () => {
        const { maps, share } = offsetAttention(this, this.weights[`layers.${layer}.attention.logits`], rows, loop);
        return { maps, share: this.stay ? share : null };
      });
    }
    if (this.attends !== "position") return { maps: this.selfAttention(layer, state, positions) };
    return this.once(layer, rows, () => {
      const { data } = this.weights[`layers.${layer}.logits`];
      const all = this.positions;
      return { maps: this.heatmaps(positions, (h, i, j) => data[(h * all + positions[i]) * all + positions[j]]) };
    });
  }

  selfAttention(layer, state, positions) {
    const rows = positions.length;
    const read = this.attends === "both" ? besides(state, this.encodings(positions), rows) : state;
    let [queries, keys] = ["W_Q", "W_K"].map((name) => affine(read, rows, this.linear(`layers.${layer}.attention.${name}`)));
    if (this.rotary) [queries, keys] = [queries, keys].map((x) => rotated(x, positions, this.heads));
    const width = queries.length / rows, d_k = width / this.heads;
    return this.heatmaps(positions, (h, i, j) => {
      let sum = 0;
      for (let k = h * d_k; k < (h + 1) * d_k; k++) sum += queries[i * width + k] * keys[j * width + k];
      const fall = this.falls ? this.falls[h] * Math.abs(positions[i] - positions[j]) : 0; // ALiBi
      return sum / Math.sqrt(d_k) + fall;
    });
  }

  heatmaps(positions, logit) {
    const rows = positions.length;
    return Array.from({ length: this.heads }, (_, h) => {
      const map = new Float64Array(rows * rows);
      for (let i = 0; i < rows; i++) {
        const row = map.subarray(i * rows, (i + 1) * rows);
        for (let j = 0; j < rows; j++) row[j] = logit(h, i, j);
        weigh(row, (j) => !this.causal || positions[i] >= positions[j], this.hardmax);
      }
      return map;
    });
  }

  /** (⊕_h A_h X W_V,h) W_O. Maps may have a sink behind the rows of the state: it is blank. */
  mix(layer, maps, state, rows) {
    const values = affine(state, rows, this.linear(`layers.${layer}.attention.W_V`));
    const width = values.length / rows, d_v = width / this.heads;
    const merged = new Float64Array(values.length);
    const across = rows + Number(this.attends === "offset");
    maps.forEach((map, h) => {
      for (let i = 0; i < rows; i++) {
        for (let j = 0; j < rows; j++) {
          const weight = map[i * across + j];
          if (weight === 0) continue;
          for (let k = h * d_v; k < (h + 1) * d_v; k++) merged[i * width + k] += weight * values[j * width + k];
        }
      }
    });
    return affine(merged, rows, this.linear(`layers.${layer}.attention.W_O`));
  }

  /** Φ: linear maps with ReLU between them. */
  mlp(layer, x, rows) {
    let hidden = relu(affine(x, rows, this.linear(`layers.${layer}.W_1`)));
    for (let k = 0; this.weights[`layers.${layer}.between.${k}.weight`]; k++) {
      hidden = relu(affine(hidden, rows, this.linear(`layers.${layer}.between.${k}`)));
    }
    return affine(hidden, rows, this.linear(`layers.${layer}.W_2`));
  }

  /** The layers in the order in which a list meets them, a tied one again and again; with the loop, where attention needs it. */
  passes(length) {
    if (this.attends === "offset") return LOOPS[this.family](length).map((loop) => ({ layer: 0, loop }));
    const times = this.looped ? Math.max(1, depth(length)) : 1;
    return Array.from({ length: this.layers * times }, (_, pass) => ({ layer: pass % this.layers }));
  }

  /** What a pass is called, and the last row of the maps, if it is none of the list's; and whether that is always blank. */
  get words() {
    const blank = this.attends === "offset";
    const last = blank ? "the sink, which is blank" : this.anyLength ? null : "the scratchpad";
    return { pass: this.looped ? "loop" : "layer", last, blank };
  }

  /** The names of the maps' rows: 1, 2, ... and s for the scratchpad or the sink. */
  names(rows) {
    return Array.from({ length: rows }, (_, i) => (this.words.last && i === rows - 1 ? "s" : String(i + 1)));
  }

  /**
   * The answer to a list, and how it came about: attention maps by pass and head and the names of their rows, the states before,
   * between and after the passes, and what attention brought to each. A list of vectors is given number after number.
   */
  run(x) {
    this.check(x);
    const length = x.length / this.inputs;
    const positions = this.positionsOf(length);
    const rows = positions.length;
    let state = affine(this.features(x, positions), rows, this.linear("encoder"));
    const states = [state], received = [], maps = [];
    for (const pass of this.passes(length)) {
      const attention = this.attention(pass, state, positions);
      const attended = this.mix(pass.layer, attention.maps, state, rows);
      const next = this.mlp(pass.layer, besides(attended, state, rows), rows); // Eq. 1
      state = attention.share ? between(state, next, attention.share) : next;
      maps.push(attention.maps);
      received.push(attended);
      states.push(state);
    }
    if (this.compiled) this.checkNumbers(state, rows);
    const answer = affine(state, rows, this.linear("decoder")).subarray(0, length * this.outputs);
    const across = rows + Number(this.attends === "offset");
    return { answer: Array.from(answer), maps, names: this.names(across), rows: across, states, received };
  }

  /** A machine that overflows has no number but -1, less one for every round since. */
  checkNumbers(state, rows) {
    for (let i = 0; i < rows; i++) {
      if (state[(i + 1) * this.embed - 1] < -0.5) {
        throw new Error(`machine ${i + 1} overflows: the program breaks the bound on its memory`);
      }
    }
  }
}
