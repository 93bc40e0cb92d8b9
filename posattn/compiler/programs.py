"""Programs with fixed communication, each a few lines of PCOC: scans, trees, sorting networks.

A scan doubles its reach every round; a sorting network exchanges with partners that depend on the round alone. Every builder
takes the number of machines and a bound on the numbers.
"""

from collections.abc import Callable, Sequence

from posattn.compiler.analysis import Known
from posattn.compiler.expressions import Expression, Memory, by_machine, equal, maximum, minimum, select
from posattn.compiler.pcoc import PCOC, Local, Round

Words = Sequence[Expression]
Combine = Callable[[Words, Words], Words]


def doublings(machines: int) -> list[int]:
    """1, 2, 4, ... below the number of machines."""
    return [1 << r for r in range((machines - 1).bit_length())]


def copies(count: int) -> Local:
    """The start of a program whose memory holds its number ``count`` times."""
    return lambda memory: [memory[0]] * count


# --- scans and trees (Figure 7, left) ---------------------------------------------------------------------------------


def scan(
    name: str, machines: int, bound: float, combine: Combine, words: int = 1, blank_is_neutral: bool = False
) -> PCOC:
    """x_1 ∘ ... ∘ x_i at machine i in log2 N rounds: in round r machine i receives from machine i - 2^r.

    A value has ``words`` words, all equal to the input at first. Memory holds it twice: one copy to keep and one to send.
    """

    def step(reach: int) -> Round:
        def compute(memory: Memory) -> list[Expression]:
            mine, theirs = memory[:words], memory[words:]
            joined = combine(theirs, mine)
            if not blank_is_neutral:
                joined = [select(memory.me >= reach, new, old) for new, old in zip(joined, mine, strict=True)]
            return [*joined, *joined]

        return Round(
            lambda i: [(i, range(words)), *([(i - reach, range(words, 2 * words))] if i >= reach else [])], compute
        )

    rounds = tuple(step(reach) for reach in doublings(machines))
    return PCOC(machines, 2 * words, (Known(-bound, bound),), rounds, (words - 1,), copies(2 * words), name=name)


def total(a: Words, b: Words) -> Words:
    return [a[0] + b[0]]


def least(a: Words, b: Words) -> Words:
    return [minimum(a[0], b[0])]


def joined_stretch(a: Words, b: Words) -> Words:
    """Joins two neighbouring stretches. A stretch is (sum, best prefix sum, best suffix sum, best sum of neighbours)."""
    best = maximum(maximum(a[3], b[3]), a[2] + b[1])
    return [a[0] + b[0], maximum(a[1], a[0] + b[1]), maximum(b[2], b[0] + a[2]), best]


def prefix_sum(machines: int, bound: float) -> PCOC:
    return scan("prefix-sum", machines, bound, total, blank_is_neutral=True)


def prefix_min(machines: int, bound: float) -> PCOC:
    return scan("prefix-min", machines, bound, least)


def max_subarray(machines: int, bound: float) -> PCOC:
    """The largest sum of neighbours so far."""
    return scan("max-subarray", machines, bound, joined_stretch, words=4)


def tree(name: str, machines: int, bound: float, combine: Combine) -> PCOC:
    """x_1 ∘ ... ∘ x_N at the last machine and 0 elsewhere: a binary tree whose root is the last machine."""

    def listens(i: int, reach: int) -> bool:
        from_root = machines - 1 - i
        return from_root % (2 * reach) == 0 and i >= reach

    def step(reach: int) -> Round:
        def compute(memory: Memory) -> list[Expression]:
            (joined,) = combine([memory[1]], [memory[0]])
            value = select(by_machine(listens(i, reach) for i in range(machines)), joined, memory[0])
            if 2 * reach >= machines:
                value = select(equal(memory.me, machines - 1), value, 0)
            return [value, value]

        return Round(lambda i: [(i, (0,)), *([(i - reach, (1,))] if listens(i, reach) else [])], compute)

    rounds = tuple(step(reach) for reach in doublings(machines))
    return PCOC(machines, 2, (Known(-bound, bound),), rounds, (0,), copies(2), name=name)


def tree_sum(machines: int, bound: float) -> PCOC:
    return tree("tree-sum", machines, bound, total)


def tree_min(machines: int, bound: float) -> PCOC:
    return tree("tree-min", machines, bound, least)


# --- sorting networks (Figure 7, right) -------------------------------------------------------------------------------


def exchange(
    machines: int, senders: Callable[[int, int], Sequence[int]], keeps_less: Callable[[int], bool], words: int = 1
) -> Round:
    """Machine i compares the words w of two machines, ``senders(i, w)``, and keeps the smaller or the larger."""

    def receive(i: int) -> list[tuple[int, Sequence[int]]]:
        return [(sender, (place * words + w,)) for w in range(words) for place, sender in enumerate(senders(i, w))]

    def compute(memory: Memory) -> list[Expression]:
        less = by_machine(keeps_less(i) for i in range(machines))
        pairs = zip(memory[:words], memory[words:], strict=True)
        kept = [select(less, minimum(mine, theirs), maximum(mine, theirs)) for mine, theirs in pairs]
        return [*kept, *kept]

    return Round(receive, compute)


def odd_even_sort(machines: int, bound: float) -> PCOC:
    """Neighbours exchange, first (0, 1), (2, 3), ..., then (1, 2), (3, 4), ..., in turn.

    The text says that N - 1 rounds are enough; 4, 3, 2, 1 needs all N.
    """

    def step(parity: int) -> Round:
        def senders(i: int, w: int) -> tuple[int, int]:
            other = i + 1 if i % 2 == parity else i - 1
            return i, other if 0 <= other < machines else i

        return exchange(machines, senders, lambda i: i % 2 == parity)

    rounds = tuple(step(r % 2) for r in range(machines))
    return PCOC(machines, 2, (Known(-bound, bound),), rounds, (0,), copies(2), name="odd-even-sort")


def bitonic_rounds(machines: int, held: Sequence[int]) -> tuple[Round, ...]:
    """Batcher's bitonic sort of 2^k machines, k (k + 1) / 2 rounds: partners differ in one bit.

    Word w is a number at the first ``held[w]`` machines and a blank at the others. Blanks are sorted as if they were larger
    than all numbers. Where they lie does not depend on the numbers, so the oracle knows it, and nothing is compared with them.
    """

    def step(block: int, reach: int) -> Round:
        less = [bool(i & reach) == bool(i & block) for i in range(machines)]
        senders = [[_compared(full, i, i ^ reach, less[i]) for i in range(machines)] for full in numbers]
        numbers[:] = [[bool(pair) for pair in row] for row in senders]
        return exchange(machines, lambda i, w: senders[w][i], lambda i: less[i], len(held))

    numbers = [[i < count for i in range(machines)] for count in held]  # by word and machine: whether it is no blank
    return tuple(step(block, reach) for block, reach in bitonic_steps(machines))


def _compared(full: Sequence[bool], i: int, partner: int, keeps_less: bool) -> list[int]:
    """The machines whose words machine ``i`` compares. A number beside a blank goes to the machine that keeps less, twice."""
    numbers = [machine for machine in (i, partner) if full[machine]]
    return numbers if len(numbers) == 2 else numbers * 2 * keeps_less


def bitonic_steps(machines: int) -> list[tuple[int, int]]:
    """(block, reach): machines i and i ^ reach exchange, ascending where i & block is 0."""
    log = (machines - 1).bit_length()
    return [(2 << stage, 1 << step) for stage in range(log) for step in reversed(range(stage + 1))]


def bitonic_sort(machines: int, bound: float) -> PCOC:
    """Bitonic sort, with spare machines up to the next power of two."""
    size = 1 << (machines - 1).bit_length()
    rounds, spare = bitonic_rounds(size, [machines]), size - machines
    return PCOC(size, 2, (Known(-bound, bound),), rounds, (0,), copies(2), name="bitonic-sort", spare=spare)


def median(machines: int, bound: float) -> PCOC:
    """The median of x_1..x_i at machine i.

    Word p belongs to the list x_1..x_p. All lists are sorted at once. Then machine p receives the two middle values of list p,
    at positions p and N + p, and nothing else.
    """
    size = 1 << (machines - 1).bit_length()

    def receive(p: int) -> list[tuple[int, Sequence[int]]]:
        return [(p // 2, (p,)), ((p + 1) // 2, (machines + p,))] if p < machines else []

    def middle(memory: Memory) -> list[Expression]:
        total = memory[0]
        for word in memory[1:]:
            total = total + word
        return [total * 0.5] * len(memory)

    rounds = (*bitonic_rounds(size, range(1, machines + 1)), Round(receive, middle))
    inputs, start = (Known(-bound, bound),), copies(2 * machines)
    return PCOC(size, 2 * machines, inputs, rounds, (0,), start, name="median", spare=size - machines)
