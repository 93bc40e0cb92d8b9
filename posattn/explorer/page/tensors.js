// Weights: text in 85 characters to bytes, inflated, to tensors by name. The other half of posattn/explorer/networks.py.

const ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%:()*+-;,=.?@^_`{|}~";
const KINDS = [["f8", Float64Array], ["f4", Float32Array], ["i4", Int32Array]];

/** Five characters are four bytes, the first character the most significant digit. */
function bytesOf(text) {
  const digit = new Uint8Array(128);
  for (let i = 0; i < 85; i++) digit[ALPHABET.charCodeAt(i)] = i;
  const missing = (5 - (text.length % 5)) % 5;
  const groups = (text.length + missing) / 5;
  const view = new DataView(new ArrayBuffer(4 * groups));
  for (let group = 0, at = 0; group < groups; group++) {
    let value = 0;
    for (let k = 0; k < 5; k++, at++) value = value * 85 + (at < text.length ? digit[text.charCodeAt(at)] : 84);
    view.setUint32(4 * group, value);
  }
  return new Uint8Array(view.buffer, 0, 4 * groups - missing);
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers whose bytes stand together by significance, least first. */
function numbersFrom(bytes, start, count, Kind) {
  const size = Kind.BYTES_PER_ELEMENT;
  const ordered = new Uint8Array(count * size);
  for (let k = 0; k < size; k++) {
    for (let i = 0; i < count; i++) ordered[i * size + k] = bytes[start + k * count + i];
  }
  return new Kind(ordered.buffer); // every machine that browsers run on is little-endian
}

/** A matrix of which only the entries that are not 0 are kept, row by row. */
function sparseMatrix(rows, cols, indices, values) {
  const starts = new Int32Array(rows + 1);
  const columns = new Int32Array(indices.length);
  indices.forEach((index, k) => {
    starts[Math.floor(index / cols) + 1]++;
    columns[k] = index % cols;
  });
  for (let row = 0; row < rows; row++) starts[row + 1] += starts[row];
  return { rows, cols, starts, columns, values };
}

function tensorAt([shape, kind, start, count, steps], numbers) {
  const values = Float64Array.from(numbers[kind].subarray(start, start + count));
  const rows = shape[0] ?? 1;
  const size = shape.reduce((product, length) => product * length, 1);
  const cols = size / rows;
  if (steps < 0) return { shape, rows, cols, data: values };
  let index = 0;
  const indices = Array.from(numbers.i4.subarray(steps, steps + count), (step) => (index += step));
  if (shape.length === 2) return { shape, ...sparseMatrix(rows, cols, indices, values) };
  const data = new Float64Array(size);
  indices.forEach((place, k) => (data[place] = values[k]));
  return { shape, rows, cols, data };
}

/** All tensors of a network by name; equal ones are one. */
async function tensorsOf({ counts, places, named }, text) {
  const bytes = await inflated(bytesOf(text));
  const numbers = {};
  let start = 0;
  KINDS.forEach(([kind, Kind], k) => {
    numbers[kind] = numbersFrom(bytes, start, counts[k], Kind);
    start += counts[k] * Kind.BYTES_PER_ELEMENT;
  });
  const tensors = places.map((place) => tensorAt(place, numbers));
  return Object.fromEntries(Object.entries(named).map(([name, k]) => [name, tensors[k]]));
}
