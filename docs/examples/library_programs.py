"""The eleven programs of the library in the compiler's front end (docs/compiler.md).

The library's own are PCOC and MPC as the paper describes them; these give the same answers.
"""

import posattn
from posattn.compiler import N, Real, Whole, clamp, lookup, maximum, minimum, select, send


def doublings(n):
    """1, 2, 4, ... below n."""
    return [1 << r for r in range((n - 1).bit_length())]


@posattn.program
def prefix_sum(me, n, x):
    for reach in doublings(n):
        x = x + (yield send(me + reach, x, when=me < n - reach)).get()
    return x


@posattn.program
def prefix_min(me, n, x):
    for reach in doublings(n):
        x = minimum(x, (yield send(me + reach, x, when=me < n - reach)).get(empty=x))
    return x


def up_the_tree(me, n, reach, x):
    """What a machine hears in a step of the binary tree whose root is the last machine."""
    return send(me + reach, x, when=(n - 1 - me) % (2 * reach) == reach)


@posattn.program
def tree_sum(me, n, x):
    for reach in doublings(n):
        x = x + (yield up_the_tree(me, n, reach, x)).get()
    return select(me == n - 1, x, 0)


@posattn.program
def tree_min(me, n, x):
    for reach in doublings(n):
        x = minimum(x, (yield up_the_tree(me, n, reach, x)).get(empty=x))
    return select(me == n - 1, x, 0)


@posattn.program
def max_subarray(me, n, x):
    whole = prefix = suffix = best = x
    for reach in doublings(n):
        before = (yield send(me + reach, whole, prefix, suffix, best, when=me < n - reach))[0]
        joined = [
            before[0] + whole,
            maximum(before[1], before[0] + prefix),
            maximum(suffix, whole + before[2]),
            maximum(maximum(before[3], best), before[2] + prefix),
        ]
        own = whole, prefix, suffix, best
        whole, prefix, suffix, best = (select(before.present, *pair) for pair in zip(joined, own, strict=True))
    return best


@posattn.program
def odd_even_sort(me, n, x):
    for r in range(n):
        first = (me + r) % 2 == 0
        partner = select(first, me + 1, me - 1)
        other = (yield send(partner, x, when=(partner >= 0) & (partner < n))).get(empty=x)
        x = select(first, minimum(x, other), maximum(x, other))
    return x


def exchanges(n):
    """Every machine's partner in each step of a bitonic sort in which the lower machine always keeps the smaller number."""
    for stage in range((n - 1).bit_length()):
        for flip in (2 * (1 << stage) - 1, *(1 << step for step in reversed(range(stage)))):
            yield [i ^ flip for i in range(n + 1)]


@posattn.program
def bitonic_sort(me, n, x):
    for partners in exchanges(n):
        partner = lookup(partners, me)
        other = (yield send(partner, x, when=partner < n)).get(empty=x)
        x = select(me < partner, minimum(x, other), maximum(x, other))
    return x


@posattn.program
def median(me, n, x):
    words = [x] * n  # word p is a number of the list x_1..x_p at the machines up to p
    for partners in exchanges(n):
        partner = lookup(partners, me)
        others = (yield send(partner, *words, when=partner < n))[0]
        for p in range(n):
            kept = select(me < partner, minimum(words[p], others[p]), maximum(words[p], others[p]))
            words[p] = select((me <= p) & (partner <= p), kept, words[p])
    places = [2 * me, 2 * me + 1, 2 * me - 1, 2 * me]  # the lists whose lower middle is here, then whose upper one is
    sends = [send(p, lookup(words, clamp(p, 0, n - 1)), when=(p >= 0) & (p < n)) for p in places]
    return sum(heard.get() for heard in (yield sends)) / 2


@posattn.program(key=Whole(0, N - 1), value=Real())
def word_count(me, n, key, value):
    return (yield send(key, value)).sum()


@posattn.program(follows=Whole(0, N))
def list_ranking(me, n, follows):
    distance = follows < n
    for _ in doublings(n):
        asked = (yield send(follows, me, when=follows < n))[0]
        told = (yield send(asked[0], follows, distance, when=asked.present))[0]
        follows, distance = select(told.present, told[0], follows), distance + told[1]
    return distance


@posattn.program(letter=Whole(0, 25), k=Whole(0, 3))
def khop(me, n, letter, k):
    letters = [place[0] for place in (yield send(range(n), letter))]
    hop = n
    for j, other in enumerate(letters):
        hop = select((me > j) & (other == letter), j + 1, hop)
    hops, at = [place[0] for place in (yield send(range(n), hop))], me
    for done in range(3):
        at = select(k > done, lookup([*hops, n], at), at)
    return lookup([*letters, -1], at)
