"""Why a standard OOD bound is loose (Appendix G): the discrepancy of a class that holds min and max does not shrink.

Lists of n integers are uniform on 0..L in training and on 0..L+z in testing. With the loss |h(x) - h'(x)|, Theorem G.1 bounds
the test risk of every h by its training risk plus disc = max over h, h' of |R_test(h, h') - R_train(h, h')|. The pair
(min, max) alone makes disc about z, however many samples there are and however good h is.

The class H of the appendix is infinite. The maximum over a finite part of it is a lower bound: every tree of pairwise min and
max (one of them per layer) and every coordinate; all of these are networks of H.

Letters: n numbers per list, L the largest in training, z how much larger in testing, m lists, G functions of the class.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from posattn.errors import UsageError, counted, flag, shown, whole
from posattn.tasks.sampling import named_split, uniform

_LONGEST = 1 << 14  # lists: their networks hold n² numbers per layer
HARD = 1e5  # with logits this far apart softmax is hardmax


def sample_integers(m: int, n: int, largest: int, seed: int = 0, split: str = "train") -> Float[Tensor, "m n"]:
    """``m`` lists of n integers, each uniform on 0..largest."""
    purpose = "integers", named_split(split), whole("n", n), whole("largest", largest)
    return torch.floor(uniform(whole("m", m), n, seed, None, *purpose) * (largest + 1))


def tree_of_extrema(x: Float[Tensor, "m n"], maxima: tuple[bool, ...]) -> Float[Tensor, " m"]:
    """Joins neighbours pairwise, layer by layer: by max in the layers where ``maxima`` is true, else by min."""
    for take_max in maxima:
        x = (torch.maximum if take_max else torch.minimum)(x[:, 0::2], x[:, 1::2])
    return x[:, 0]


def part_of_the_class(x: Float[Tensor, "m n"]) -> Float[Tensor, "G m"]:
    """The values of the finite part of H: the trees, of which the first is min and the last max, then the coordinates."""
    kinds = itertools.product((False, True), repeat=tree_depth(x.shape[1]))
    trees = [tree_of_extrema(x, maxima) for maxima in kinds]
    return torch.stack([*trees, *x.unbind(dim=1)])


def tree_depth(n: int) -> int:
    """log2 n, for n a power of two."""
    layers = whole("n", n, least=2).bit_length() - 1
    if 2**layers != n:
        raise UsageError(f"n is {n}; it must be a power of two, for the tree to have log2 n layers.")
    return layers


@dataclass(frozen=True)
class Members:
    """R networks of the class H itself: log2 n layers, two heads, W_V = W_O = I, four hidden units, one number per position.

    A layer computes s_i = W_2ᵀ relu(W_1ᵀ [(A_1 s)_i, (A_2 s)_i, s_i]), where A_h is the softmax of ``logits``. The logits are
    arbitrary, as they are for encodings in general position. There are no biases, since min and max need none. h(x) is the
    number at the last position.
    """

    logits: Float[Tensor, "R L 2 n n"]
    W_1: Float[Tensor, "R L 3 4"]
    W_2: Float[Tensor, "R L 4"]

    def __call__(self, x: Float[Tensor, "m n"]) -> Float[Tensor, "R m"]:
        R, layers, _, n, _ = self.logits.shape
        own = torch.eye(n, dtype=self.logits.dtype).expand(R, layers, 1, n, n)
        A = torch.cat([self.logits.softmax(dim=-1), own], dim=2)
        # What hidden unit k of position i reads of position j: attention and W_1 in one matrix per layer.
        reads = torch.einsum("rlck,rlcij->rlkij", self.W_1, A)
        s = x.T.expand(R, n, len(x))
        for layer in range(layers):
            positions = slice(n) if layer < layers - 1 else slice(n - 1, n)  # of the last layer only h(x) is asked for
            hidden = torch.relu(reads[:, layer, :, positions].flatten(1, 2) @ s)
            s = (self.W_2[:, layer, None] @ hidden.view(R, 4, -1)).view(R, -1, len(x))
        return s[:, 0]

    def member(self, index: int) -> "Members":
        """The network number ``index``, as a class of one."""
        return Members(*(w[index : index + 1] for w in (self.logits, self.W_1, self.W_2)))


def extremum(n: int, maximum: bool = False) -> Members:
    """The min (or max) of n numbers exactly, n a power of two.

    In layer l position i attends to itself and to the partner whose l-th binary digit differs. After the last layer every
    position holds the answer.
    """
    flag("maximum", maximum)
    positions, layers = torch.arange(whole("n", n, most=_LONGEST)), tree_depth(n)
    pairs = torch.stack([torch.stack([positions, positions ^ (1 << l)]) for l in range(layers)])
    # min(a, b) = (relu(a+b) - relu(-a-b) - relu(a-b) - relu(b-a))/2, max with plus signs for the last two
    sums = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    last = 0.5 if maximum else -0.5
    return Members(
        HARD * torch.nn.functional.one_hot(pairs, n).float()[None],
        sums.expand(1, layers, 3, 4),
        torch.tensor([0.5, -0.5, last, last]).expand(1, layers, 4),
    )


@dataclass(frozen=True)
class Discrepancy:
    """Measured on two samples: the largest discrepancy of any two functions of the class, and that of min and max."""

    largest: float
    min_and_max: float
    rademacher_train: float
    rademacher_test: float

    @property
    def terms(self) -> float:
        """Corollary 7 without its O(√(1/m)): the empirical discrepancy and four times the Rademacher terms."""
        return self.largest + 4 * (self.rademacher_train + self.rademacher_test)


def empirical_discrepancy(
    train: Float[Tensor, "m n"], test: Float[Tensor, "m2 n"], seed: int = 0, signs: int = 200
) -> Discrepancy:
    """The empirical discrepancy of the finite part of H, and its empirical Rademacher complexities from random signs."""
    for field, lists in (("train", train), ("test", test)):
        if not isinstance(lists, Tensor) or lists.ndim != 2 or not lists.is_floating_point() or not lists.numel():
            raise UsageError(f"{field} is {shown(lists)}; it must be a tensor of lists, (m, n).")
    if train.shape[1] != test.shape[1]:
        raise UsageError(f"test has lists of {counted(test.shape[1], 'number')}; those of train have {train.shape[1]}.")
    whole("signs", signs, most=10**6)
    whole("seed", seed, least=0, most=2**62)
    samples = part_of_the_class(train), part_of_the_class(test)
    # The mean of |h(x) - h'(x)| over each sample, for every pair.
    here, there = (torch.stack([(values - own).abs().mean(dim=1) for own in values]) for values in samples)
    apart, last_tree = (there - here).abs(), train.shape[1] - 1
    complexities = [rademacher(values, seed=seed + offset, signs=signs) for offset, values in enumerate(samples)]
    return Discrepancy(float(apart.max()), float(apart[0, last_tree]), *complexities)


def rademacher(values: Float[Tensor, "G m"], seed: int = 0, signs: int = 200) -> float:
    """Definition C.1, (1/m) E sup_h Σ ε_i h(x_i); the expectation is a mean over ``signs`` random draws."""
    generator = torch.Generator().manual_seed(seed)
    epsilon = torch.randint(0, 2, (values.shape[1], signs), generator=generator).to(values.dtype) * 2 - 1
    return float((values @ epsilon / values.shape[1]).amax(dim=0).mean())


def chance_of_both_ends(n: int, largest: int, m: int = 1) -> float:
    """The probability that each of m lists holds a 0 and a ``largest``, by inclusion and exclusion."""
    neither = ((largest - 1) / (whole("largest", largest) + 1)) ** whole("n", n)
    return max(0.0, 1 - 2 * (largest / (largest + 1)) ** n + neither) ** whole("m", m)


def claimed_chance(n: int, largest: int, m: int = 1) -> float:
    """The appendix's lower bound of that probability, (1 - 2 (L/(L+1))^n)^m."""
    return max(0.0, 1 - 2 * (largest / (whole("largest", largest) + 1)) ** whole("n", n)) ** whole("m", m)


def least_length(largest: int, z: int, power: int = 1) -> int:
    """n_0 of the claim: from this n on, all m = n^power lists of either sample hold both ends with probability 0.9."""
    # Within these limits the search takes seconds.
    largest, power = whole("largest", largest, most=10**6), whole("power", power, most=20)
    z = whole("z", z, least=0, most=10**6)

    def holds(n: int) -> bool:
        return all(claimed_chance(n, end, n**power) >= 0.9 for end in (largest, largest + z))

    # (1 - 2 q^n)^(n^power) rises with n once n exceeds power / log(1/q): if the claim holds there, it holds from there on.
    turning = math.ceil(power / math.log((largest + z + 1) / (largest + z)))
    return next(n for n in itertools.count(max(2, turning)) if holds(n))
