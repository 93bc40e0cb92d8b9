"""Ten programs in the compiler's front end (docs/compiler.md), each with its answer in plain Python.

posattn compile docs/examples/programs.py:bfs --machines 6 --check
"""

from itertools import accumulate, groupby

import posattn
from posattn.compiler import Bit, N, Real, Whole, lookup, minimum, select, send, times

# --- graphs: every machine is a node, and names up to three neighbours; n stands for none ------------------------------


@posattn.program(near=[Whole(0, N)] * 3, start=Bit)
def bfs(me, n, near, start):
    """How many edges lead here from the nearest start; n if none does."""
    level = select(start, 0, n)
    for _ in range(n - 1):
        heard = yield send(near, level + 1, when=[other < n for other in near])
        level = minimum(level, heard.min(n))
    return level


@bfs.truth
def _(near, start):
    n, level, frontier = len(start), {}, [i for i, bit in enumerate(start) if bit]
    for distance in range(n):
        level |= {i: distance for i in frontier if i not in level}
        frontier = [j for i in frontier for j in near[i] if j < n and j not in level]
    return [level.get(i, n) for i in range(n)]


@posattn.program(near=[Whole(0, N)] * 3)
def components(me, n, near):
    """The smallest number of a node that is connected to this one; both ends name an edge."""
    label = me
    for _ in range(n - 1):
        heard = yield send(near, label, when=[other < n for other in near])
        label = minimum(label, heard.min(label))
    return label


@components.samples
def _(random, n):
    near = [[] for _ in range(n)]
    for a, b in random.integers(0, n, (n, 2)).tolist():
        if a != b and b not in near[a] and max(len(near[a]), len(near[b])) < 3:
            near[a].append(b)
            near[b].append(a)
    return [[*each, *[n] * (3 - len(each))] for each in near]


@components.truth
def _(near):
    label = list(range(len(near)))
    for _ in near:
        label = [min(label[i], *(label[j] for j in each if j < len(near)), label[i]) for i, each in enumerate(near)]
    return label


@posattn.program(row=Whole(0, N - 1), column=Whole(0, N - 1), entry=Whole(-3, 3), x=Real())
def sparse_matrix_vector(me, n, row, column, entry, x):
    """The product of a matrix and the vector x; every machine has one entry of the matrix, and where it stands."""
    vector = yield send(range(n), x)
    products = yield send(row, times(entry, lookup([place[0] for place in vector], column)))
    return products.sum()


@sparse_matrix_vector.truth
def _(row, column, entry, x):
    return [sum(e * x[c] for r, c, e in zip(row, column, entry, strict=True) if r == i) for i in range(len(x))]


# --- lists --------------------------------------------------------------------------------------------------------------


def running_total(me, n, total):
    """The sum of ``total`` over this machine and all before it, for other programs."""
    reach = 1
    while reach < n:
        heard = yield send(me + reach, total, when=me < n - reach)
        total, reach = total + heard.sum(), 2 * reach
    return total


@posattn.program(letter=Whole(0, 9))
def run_length_encoding(me, n, letter):
    """The k-th run of equal letters at machine k: its letter and its length; zeros after the last run."""
    before = (yield send(me + 1, letter, when=me < n - 1))[0]
    run = (yield from running_total(me, n, ~before.present | (before[0] != letter))) - 1
    members = yield send(run, letter)
    return members.get(), members.count()


@run_length_encoding.samples
def _(random, n):
    return random.integers(0, 2, (n, 1))


@run_length_encoding.truth
def _(letter):
    runs = [(each, len(list(group))) for each, group in groupby(letter)]
    return [*runs, *[(0, 0)] * (len(letter) - len(runs))]


@posattn.program(x=Whole(-100, 100))
def rank_sort(me, n, x):
    """The numbers in ascending order: each goes to the machine whose number is its rank."""
    key = x * n + me
    others = yield send(range(n), key)
    rank = sum(other[0] < key for other in others)
    mine = yield send(rank, x)
    return mine.get()


@rank_sort.truth
def _(x):
    return sorted(x)


@posattn.program(keep=Bit, x=Real())
def stream_compaction(me, n, keep, x):
    """The numbers whose bit is 1, in their order; zeros after the last."""
    place = (yield from running_total(me, n, keep)) - 1
    mine = yield send(place, x, when=keep)
    return mine.get()


@stream_compaction.truth
def _(keep, x):
    kept = [number for bit, number in zip(keep, x, strict=True) if bit]
    return kept + [0] * (len(x) - len(kept))


STEPS = [
    [0, 1],
    [2, 0],
    [1, 2],
]  # STEPS[state][letter] is the next state: what is read so far, as a binary number modulo 3


@posattn.program(letter=Bit)
def dfa_scan(me, n, letter):
    """The state of a finite automaton after every letter: machines compose the functions from state to state."""
    after = [lookup(row, letter) for row in STEPS]
    reach = 1
    while reach < n:
        before = (yield send(me + reach, *after, when=me < n - reach))[0]
        after = [select(before.present, lookup(after, before[q]), after[q]) for q in range(len(STEPS))]
        reach *= 2
    return after[0]


@dfa_scan.truth
def _(letter):
    return list(accumulate(letter, lambda state, each: STEPS[state][each], initial=0))[1:]


KERNEL = (0.25, -0.5, 1.0)


@posattn.program
def convolution(me, n, x):
    """Σ_k KERNEL[k] x_{i - k}, where nothing stands before the first number."""
    moved = yield [send(me + k, x, when=me < n - k) for k in range(len(KERNEL))]
    return sum(weight * heard.get() for weight, heard in zip(KERNEL, moved, strict=True))


@convolution.truth
def _(x):
    return [sum(weight * x[i - k] for k, weight in enumerate(KERNEL) if k <= i) for i in range(len(x))]


# --- cellular automata --------------------------------------------------------------------------------------------------

RULE_110 = [0, 1, 1, 1, 0, 1, 1, 0]


@posattn.program(cell=Bit)
def rule_110(me, n, cell):
    """A ring of cells after four steps of rule 110."""
    for _ in range(4):
        left, right = yield send((me + 1) % n, cell), send((me - 1) % n, cell)
        cell = lookup(RULE_110, 4 * left.get() + 2 * cell + right.get())
    return cell


@rule_110.truth
def _(cell):
    for _ in range(4):
        cell = [RULE_110[4 * cell[i - 1] + 2 * cell[i] + cell[(i + 1) % len(cell)]] for i in range(len(cell))]
    return cell


AROUND = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]


@posattn.program(cell=Bit)
def life(me, n, cell):
    """Two steps of Conway's Life on a square whose opposite sides meet; machines are its cells, row by row."""
    side = round(n**0.5)
    near = [(me // side + a) % side * side + (me + b) % side for a, b in AROUND]
    for _ in range(2):
        alive = (yield send(near, cell)).sum()
        cell = (alive == 3) | (cell & (alive == 2))
    return cell


@life.truth
def _(cell):
    side = round(len(cell) ** 0.5)
    for _ in range(2):
        around = [
            sum(cell[(i // side + a) % side * side + (i + b) % side] for a, b in AROUND) for i in range(len(cell))
        ]
        cell = [int(alive == 3 or (bit and alive == 2)) for bit, alive in zip(cell, around, strict=True)]
    return cell
