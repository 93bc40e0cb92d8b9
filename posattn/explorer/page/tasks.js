// True answers, the obvious way: of tasks (posattn/tasks/numeric.py) and of programs (posattn/compiler/programs.py).

const prefixes = (x) => x.map((_, i) => x.slice(0, i + 1));
const sum = (x) => x.reduce((total, value) => total + value, 0);
const ascending = (x) => [...x].sort((a, b) => a - b);

function middle(x) {
  const sorted = ascending(x);
  return (sorted[Math.floor((x.length - 1) / 2)] + sorted[Math.floor(x.length / 2)]) / 2;
}

function bestStretch(x) {
  return Math.max(...x.flatMap((_, start) => prefixes(x.slice(start)).map(sum)));
}

const lastOnly = (of) => (x) => x.map((_, i) => (i === x.length - 1 ? of(x) : 0));
const least = (x) => Math.min(...x);
const everywhere = (of) => (x) => x.map(() => of(x));
const cumulative = (of) => (x) => prefixes(x).map(of);

const TASKS = {
  sum: cumulative(sum),
  min: cumulative(least),
  median: cumulative(middle),
  sort: ascending,
  maxsub: cumulative(bestStretch),
  "sum-total": everywhere(sum),
  "min-total": everywhere(least),
  "median-total": everywhere(middle),
  "maxsub-total": everywhere(bestStretch),
};

/** How many nodes follow each one in its list; nothing where a list never ends. */
function distances(x) {
  const found = x.map((_, start) => {
    let node = start, count = 0;
    while ((node = x[node]) !== x.length) {
      if (++count > x.length || node === undefined) return NaN;
    }
    return count;
  });
  return found.every(Number.isFinite) ? found : null;
}

/** The letter k hops away, or -1: a hop goes behind the latest earlier place of the letter. */
function hops(x) {
  const letters = x.filter((_, k) => k % 2 === 0);
  return letters.map((_, i) => {
    let at = i;
    for (let k = x[2 * i + 1]; k > 0 && at >= 0; k--) {
      const earlier = letters.lastIndexOf(letters[at], at - 1);
      at = at === 0 || earlier < 0 ? -1 : earlier + 1;
    }
    return at < 0 ? -1 : letters[at];
  });
}

const PROGRAMS = {
  "prefix-sum": TASKS.sum,
  "prefix-min": TASKS.min,
  "tree-sum": lastOnly(sum),
  "tree-min": lastOnly(least),
  "max-subarray": TASKS.maxsub,
  "odd-even-sort": ascending,
  "bitonic-sort": ascending,
  median: TASKS.median,
  "word-count": (x) => x.filter((_, k) => k % 2 === 0).map((_, j) => sum(x.filter((_, k) => k % 2 === 1 && x[k - 1] === j))),
  "list-ranking": distances,
  "khop-scan": hops,
  khop: hops,
};

/** The true answer, or null where nobody on this page knows it. */
function truthOf(table, name, x) {
  return Object.hasOwn(table, name) ? table[name](x) : null;
}
