"""The programs of the library, each a function of the front end (docs/compiler.md), with its answers in plain Python.

A scan doubles its reach every round; a sorting network exchanges with partners that depend on the round alone; in the last
two programs the data decides where messages go. Real inputs lie within the bound.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median as middle
from typing import Any

from posattn.compiler.function_programs import program
from posattn.compiler.program_messages import send
from posattn.compiler.program_numbers import N, Real, Whole, by_machine, clamp, lookup, maximum, minimum, select
from posattn.errors import UsageError

# --- scans and trees (Figure 7, left) ----------------------------------------------------------------------------------


def doublings(n: int) -> list[int]:
    """1, 2, 4, ... below n."""
    return [1 << r for r in range((n - 1).bit_length())]


@program
def prefix_sum(me: Any, n: int, x: Any) -> Any:
    """x_1 + ... + x_i."""
    for reach in doublings(n):
        x = x + (yield send(me + reach, x, when=me < n - reach)).get()
    return x


prefix_sum.truth(lambda x: list(accumulate(x)))
prefix_sum.task = "sum"


@program
def prefix_min(me: Any, n: int, x: Any) -> Any:
    """min(x_1..x_i)."""
    for reach in doublings(n):
        x = minimum(x, (yield send(me + reach, x, when=me < n - reach)).get(empty=x))
    return x


prefix_min.truth(lambda x: list(accumulate(x, min)))
prefix_min.task = "min"


def up_the_tree(me: Any, n: int, reach: int, x: Any) -> Any:
    """A step of the binary tree whose root is the last machine."""
    return send(me + reach, x, when=by_machine((n - 1 - i) % (2 * reach) == reach for i in range(n)))


@program
def tree_sum(me: Any, n: int, x: Any) -> Any:
    """The sum, at the last machine."""
    for reach in doublings(n):
        x = x + (yield up_the_tree(me, n, reach, x)).get()
    return select(me == n - 1, x, 0)


tree_sum.truth(lambda x: [*[0] * (len(x) - 1), sum(x)])


@program
def tree_min(me: Any, n: int, x: Any) -> Any:
    """The minimum, at the last machine."""
    for reach in doublings(n):
        x = minimum(x, (yield up_the_tree(me, n, reach, x)).get(empty=x))
    return select(me == n - 1, x, 0)


tree_min.truth(lambda x: [*[0] * (len(x) - 1), min(x)])


def joined_stretch(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """Joins two neighbouring stretches. A stretch is (sum, best prefix sum, best suffix sum, best sum of neighbours)."""
    best = maximum(maximum(a[3], b[3]), a[2] + b[1])
    return [a[0] + b[0], maximum(a[1], a[0] + b[1]), maximum(b[2], b[0] + a[2]), best]


@program
def max_subarray(me: Any, n: int, x: Any) -> Any:
    """The largest sum of neighbours so far."""
    stretch = [x] * 4
    for reach in doublings(n):
        before = (yield send(me + reach, *stretch, when=me < n - reach))[0]
        pairs = zip(joined_stretch(before.words, stretch), stretch, strict=True)
        stretch = [select(me >= reach, joined, own) for joined, own in pairs]
    return stretch[3]


@max_subarray.truth
def _(x: list[float]) -> Any:
    return [max(sum(x[j : k + 1]) for k in range(i + 1) for j in range(k + 1)) for i in range(len(x))]


max_subarray.task = "maxsub"


# --- sorting networks (Figure 7, right) --------------------------------------------------------------------------------


def exchanges(n: int, ascend: bool) -> Any:
    """Every machine's partner in each step of a bitonic sort, and whether it keeps the smaller number.

    Blocks ascend and descend in turn, and partners differ in one bit. With ``ascend`` all blocks ascend, and the first step of
    a block mirrors it. Then a list of any length is sorted: a machine keeps its number where the partner is missing.
    """
    for block in (2 * reach for reach in doublings(n)):
        for reach in reversed(doublings(block)):
            flip = block - 1 if ascend and 2 * reach == block else reach
            less = [(i & reach > 0) == (not ascend and i & block > 0) for i in range(n)]
            yield [i ^ flip for i in range(n)], less


def exchange(x: Any, partners: list[int], keeps_less: list[bool]) -> Any:
    """The smaller or the larger of a machine's number and its partner's; its own where the partner is missing."""
    there = [0 <= partner < len(partners) for partner in partners]
    other = (yield send(by_machine(partners), x, when=by_machine(there))).get(empty=x)
    return select(by_machine(keeps_less), minimum(x, other), maximum(x, other))


@program
def bitonic_sort(me: Any, n: int, x: Any) -> Any:
    """Sorting, log² N rounds."""
    for partners, keeps_less in exchanges(n, ascend=n & (n - 1) > 0):
        x = yield from exchange(x, partners, keeps_less)
    return x


@program
def odd_even_sort(me: Any, n: int, x: Any) -> Any:
    """Sorting, neighbours exchange."""
    for r in range(n):  # the text says that n - 1 rounds are enough; 4, 3, 2, 1 needs all n
        first = [(i + r) % 2 == 0 for i in range(n)]
        x = yield from exchange(x, [i + 1 if first[i] else i - 1 for i in range(n)], first)
    return x


odd_even_sort.truth(bitonic_sort.truth(lambda x: sorted(x)))
bitonic_sort.task = odd_even_sort.task = "sort"


@program
def median(me: Any, n: int, x: Any) -> Any:
    """The median of x_1..x_i, by sorting."""
    words = [x] * n  # word p is a number of the list x_1..x_p at the machines up to p
    for partners, keeps_less in exchanges(n, ascend=True):
        others = (yield send(by_machine(partners), *words, when=by_machine(j < n for j in partners)))[0]
        for p in range(n):
            kept = select(by_machine(keeps_less), minimum(words[p], others[p]), maximum(words[p], others[p]))
            words[p] = select(by_machine(max(i, j) <= p for i, j in enumerate(partners)), kept, words[p])
    places = [2 * me, 2 * me + 1, 2 * me - 1, 2 * me]  # the lists whose lower middle is here, then whose upper one is
    sends = [send(p, lookup(words, clamp(p, 0, n - 1)), when=(p >= 0) & (p < n)) for p in places]
    return sum(heard.get() for heard in (yield sends)) / 2


median.truth(lambda x: [middle(x[: i + 1]) for i in range(len(x))])
median.task = "median"


# --- messages that the data directs ------------------------------------------------------------------------------------


@program(key=Whole(0, N - 1), value=Real())
def word_count(me: Any, n: int, key: Any, value: Any) -> Any:
    """Sums of values by key."""
    return (yield send(key, value)).sum()


@word_count.truth
def _(key: list[int], value: list[float]) -> Any:
    return [sum(x for k, x in zip(key, value, strict=True) if k == j) for j in range(len(key))]


@program(follows=Whole(0, N))
def list_ranking(me: Any, n: int, follows: Any) -> Any:
    """Distance from the end of a list."""
    distance = follows < n
    for _ in doublings(n):
        asked = (yield send(follows, me, when=follows < n, most=1))[0]
        told = (yield send(asked[0], follows, distance, when=asked.present, most=1))[0]
        follows, distance = select(told.present, told[0], follows), distance + told[1]
    return distance


@list_ranking.truth
def _(follows: list[int]) -> Any:
    def distance(i: int) -> int:
        node, count = i, 0
        while (node := follows[node]) != len(follows):
            count += 1
            if count > len(follows):
                raise UsageError(f"the list of node {i} never ends.")
        return count

    return [distance(i) for i in range(len(follows))]


@list_ranking.samples
def _(random: Any, n: int) -> Any:
    """A random order of the nodes, which may be cut into two."""
    order, cut, follows = random.permutation(n), random.integers(0, n), [n] * n
    for place, (here, following) in enumerate(pairwise(order)):
        if place != cut:
            follows[here] = following
    return follows
