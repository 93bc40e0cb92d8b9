// Attention over a few offsets, for lists of every length, as posattn/looped/offsets.py has it.
// Letters: n positions, H heads, C candidates, K classes of positions; in a loop of stride s position i looks at i + r s.

/** ⌈log2 n⌉, exactly. */
function depth(n) {
  let digits = 0;
  while (2 ** digits < n) digits++;
  return digits;
}

/** Strides 1, 2, 4, ... */
const doubling = (count, more = {}) => Array.from({ length: count }, (_, step) => ({ stride: 2 ** step, ...more }));

const MIDDLE = 0, OUTWARDS = -1;

/** The loops of each family for lists of n: strides and, where directions are told apart, the digit of the stage. */
const LOOPS = {
  dilated: (n) => doubling(depth(n)),
  butterfly: (n) =>
    Array.from({ length: depth(n) }, (_, k) => k + 1).flatMap((stage) => doubling(stage, { stage }).reverse()),
  selector: (n) => [
    ...LOOPS.butterfly(n),
    ...(n % 2 ? [] : [{ stride: 1, stage: MIDDLE }]),
    ...doubling(depth(Math.floor((n + 1) / 2)), { stage: OUTWARDS }),
  ],
};

/** The middle two, those with a place s nearer to the middle, and others. */
function classBySide(i, n, { stride, stage }) {
  const left = Math.floor((n - 1) / 2), right = Math.floor(n / 2);
  if (stage === MIDDLE) return i === left ? 4 : i === right ? 5 : 6;
  return left - i >= stride ? 1 : i - right >= stride ? 3 : 6;
}

/** c(i): with stages whether i is the upper of its pair, and whether its block is sorted downwards; else 0. */
function classOf(i, n, { stride, stage }) {
  if (stage === undefined) return 0;
  if (stage <= MIDDLE) return classBySide(i, n, { stride, stage });
  const digit = (position) => Math.floor(position / 2 ** stage) % 2;
  const upper = Math.floor(i / stride) % 2;
  return 2 * upper + Number(digit(i) !== digit(n - 1));
}

/** softmax(S T): rows of C + 1 weights, the sink's last, by head and class. */
function offsetTable({ data }, sharpness, width) {
  const table = data.map((logit) => sharpness * logit);
  for (let start = 0; start < table.length; start += width) weigh(table.subarray(start, start + width), () => true, false);
  return table;
}

/**
 * A as matrices (n + 1, n + 1), the sink last, to which goes what falls out of the list; and m, the share of the attention
 * that does not fall out: m(i) = Π_h (1 - what head h gives to candidates outside).
 */
function offsetAttention({ heads, candidates, sharpness }, logits, n, loop) {
  const width = candidates.length + 1, all = n + 1;
  const table = offsetTable(logits, sharpness, width);
  const classes = table.length / width / heads;
  const share = new Float64Array(n).fill(1);
  const maps = Array.from({ length: heads }, (_, h) => {
    const map = new Float64Array(all * all);
    map[all * all - 1] = 1; // the sink attends to itself
    for (let i = 0; i < n; i++) {
      const start = (h * classes + classOf(i, n, loop)) * width;
      let outside = 0;
      candidates.forEach((r, c) => {
        const place = i + r * loop.stride;
        if (place >= 0 && place < n) map[i * all + place] = table[start + c];
        else outside += table[start + c];
      });
      map[i * all + n] = table[start + width - 1] + outside;
      share[i] *= 1 - outside;
    }
    return map;
  });
  return { maps, share };
}

/** m Y + (1 - m) X, row by row; exactly X or Y where m is 0 or 1. */
function between(x, y, share) {
  const width = x.length / share.length;
  return x.map((old, k) => {
    const m = share[Math.floor(k / width)];
    return m < 0.5 ? old + m * (y[k] - old) : y[k] - (1 - m) * (y[k] - old);
  });
}
