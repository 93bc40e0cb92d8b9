"""The generalization bound (Theorem 6.1) as a number, from the expressions of its proof (Appendix C), corrected.

With F the class of Eq. 10, R_l the radius of layer l's input, R_l = B_{l-1} B_X, and Λ_l the Lipschitz constant of layer l,

    ε = ε_w + B_w Σ_l α_l (ε_W2 + β ε_W1 + γ_l ε_QK + η ε_V)                                       (Eq. 18)
    log|C| = Σ_i a_i / ε_i²,   the least of which is ν³/ε², ν = Σ_i a_i^(1/3) b_i^(2/3)             (Eq. 19, Lemma C.5)
    gap <= 4 Lip · sqrt(ν³/m) (1 + log⁺(A sqrt(m/ν³))) + 2 b sqrt(log(1/δ) / 2m)                   (Lemma C.1, Theorem C.1)

Every constant that the paper leaves unnamed (its ≲ and the c of Lemma C.1) is set to one. Numbers are kept as logarithms,
because they grow exponentially with depth. docs/errata.md lists the differences from the printed proof, with reasons.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import pandas as pd

from posattn.errors import UsageError, choice, counted, flag, positive, whole, within
from posattn.theory.matrices import ClassNorms

ATTENTION = ("positional", "self-attention")
FROM, TO = 1e-100, 1e100  # the range of caps and limits, whose squares a float holds
_LARGEST = 709.0  # the largest logarithm of a number that a float holds
MOST_SAMPLES = 1e300


@dataclass(frozen=True)
class LayerConstants:
    """Logarithms of one layer's constants in Eq. 18 and 19."""

    B: float  # B_l: the factor by which rows of F_l exceed those of X
    radius: float  # R_l: the largest norm of a row of F_{l-1}
    attending_radius: float  # that of what attends: B_P, or R_l again
    mlp_radius: float  # that of g, which W_1 reads
    hidden_radius: float  # that of σ(g W_1), which W_2 reads
    lipschitz: float  # Λ_l
    alpha: float
    beta: float
    gamma: float
    eta: float


@dataclass(frozen=True)
class Term:
    """One matrix's part of the cover: the logarithms of a_i and b_i in Lemma C.5. The readout w has layer 0.

    Of all ε_i with Σ b_i ε_i = ε those of ``log_split`` minimize Σ a_i/ε_i², and the minimum is ν³/ε².
    """

    layer: int
    matrix: str
    log_a: float
    log_b: float

    @property
    def log_nu(self) -> float:
        """a^(1/3) b^(2/3), its part of ν."""
        return (self.log_a + 2 * self.log_b) / 3

    @property
    def log_split(self) -> float:
        """(a/b)^(1/3), which is ν ε_i / ε."""
        return (self.log_a - self.log_b) / 3


@dataclass(frozen=True, repr=False)
class GeneralizationBound:
    """|risk - empirical risk| <= ``gap`` with probability 1 - ``delta``, for all networks with these norms at once.

    ``gap`` = ``complexity`` + ``confidence``. The loss is the squared error cut off at ``cap``; a union bound covers the
    ``outputs``. A gap of at least the cap says nothing; then ``vacuous`` is true.
    """

    norms: ClassNorms
    samples: float
    attention: str = "positional"
    delta: float = 0.05
    cap: float = 1.0
    outputs: int = 1
    layer_norm: bool = False

    def __post_init__(self) -> None:
        norms = self.norms
        choice("attention", self.attention, ATTENTION)
        flag("layer_norm", self.layer_norm)
        if not 0 < positive("delta", self.delta) < 0.5:
            raise UsageError(f"delta is {self.delta!r}; it must be above 0 and below 0.5.")
        within("cap", self.cap, FROM, TO)
        within("samples", self.samples, 2, MOST_SAMPLES)
        whole("outputs", self.outputs)
        if not all(math.isfinite(value) for value in vars(norms).values()):
            raise UsageError(f"the norms of the class are {norms}; they must be finite numbers.")
        if norms.L_sigma < 1:
            raise UsageError(f"L_sigma is {norms.L_sigma!r}; the proof needs a Lipschitz constant of at least 1.")
        for field in ("B_2", "B_21"):
            if getattr(norms, field) < 1:
                raise UsageError(f"{field} is {getattr(norms, field)!r}; the proof's products need a norm of at least 1.")
        whole("L", norms.L)
        for field in ("B_X", "B_P"):
            positive(field, getattr(norms, field))

    @cached_property
    def layers(self) -> tuple[LayerConstants, ...]:
        return layer_constants(self.norms, self.attention, self.layer_norm)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        return cover_terms(self.norms, self.layers, self.samples, self.layer_norm)

    def __repr__(self) -> str:
        """The class and the gap; ``table`` and ``constants`` give the rest."""
        kind = "positional attention" if self.attention == "positional" else self.attention
        of = f"{counted(len(self.layers), 'layer')} of {kind}"
        of += ", layer-normalised" if self.layer_norm else ""
        return (
            f"GeneralizationBound({of}, {self.samples:g} samples, delta {self.delta:g}, cap {self.cap:g}: "
            f"gap <= {in_digits(self.log10_gap)}{', vacuous' if self.vacuous else ''})"
        )

    @property
    def log_nu(self) -> float:
        return log_sum(term.log_nu for term in self.terms)

    @property
    def log_cover(self) -> float:
        """The logarithm of C = ν³ in log|C| <= C/ε²."""
        return 3 * self.log_nu

    @property
    def log_complexity(self) -> float:
        """log of 4 Lip times the Rademacher complexity of Lemma C.1; the capped squared error is 2 sqrt(cap)-Lipschitz."""
        # Lemma C.1: sqrt(C/m) (1 + log(A sqrt(m/C))), |f| <= A = B_w B_L B_X
        root = (self.log_cover - math.log(self.samples)) / 2
        largest = _log(self.norms.B_w) + _radius(self.norms, self.norms.L, self.layer_norm)
        return math.log(8 * math.sqrt(self.cap)) + root + math.log1p(max(0.0, largest - root))

    @property
    def complexity(self) -> float:
        return math.exp(self.log_complexity) if self.log_complexity < _LARGEST else math.inf

    @property
    def confidence(self) -> float:
        """2 b sqrt(log(k/δ) / 2m): Theorem C.1, with δ/k for each of k outputs."""
        logarithm = math.log(self.outputs) - math.log(self.delta)
        return 2 * self.cap * math.sqrt(logarithm / (2 * self.samples))

    @property
    def gap(self) -> float:
        """inf where a float cannot hold it; ``log10_gap`` is always finite."""
        return self.complexity + self.confidence

    @property
    def log10_gap(self) -> float:
        return log_sum([self.log_complexity, math.log(self.confidence)]) / math.log(10)

    @property
    def vacuous(self) -> bool:
        return self.gap >= self.cap

    def table(self) -> pd.DataFrame:
        """One row per layer and matrix: its share of ν, its part ε_i/ε of the cover's radius, and its constants."""
        rows = []
        for term in self.terms:
            logs = {"ε_i/ε": term.log_split - self.log_nu, "a": term.log_a, "b": term.log_b}
            own = {"layer": term.layer, "matrix": term.matrix, "share": math.exp(term.log_nu - self.log_nu)}
            rows.append(own | {f"log10 {name}": value / math.log(10) for name, value in logs.items()})
        return pd.DataFrame(rows)

    def constants(self) -> pd.DataFrame:
        """The constants of the proof, one row per layer, as decimal logarithms: B_l, R_l, Λ_l, α_l, β, γ_l and η."""
        letters = {"B": "B", "radius": "R", "lipschitz": "Λ", "alpha": "α", "beta": "β", "gamma": "γ", "eta": "η"}
        rows = []
        for index, own in enumerate(self.layers, start=1):
            logs = {f"log10 {letter}": getattr(own, name) / math.log(10) for name, letter in letters.items()}
            rows.append({"layer": index} | logs)
        return pd.DataFrame(rows)

    def to_dict(self, gap: float) -> dict[str, Any]:
        """Everything as a dictionary, including how many samples a wanted ``gap`` needs."""
        named = ("samples", "delta", "cap", "outputs", "layer_norm", "gap", "complexity", "confidence", "log10_gap")
        found = {name: getattr(self, name) for name in (*named, "vacuous")} | {"samples_for_gap": self.samples_for(gap)}
        return found | {"layers": self.constants().to_dict("records"), "terms": self.table().to_dict("records")}

    def samples_for(self, gap: float) -> float:
        """How many samples make the bound at most ``gap``; a float, because the number may be astronomical."""
        wanted = math.log(positive("gap", gap))

        def enough(log_m: float) -> bool:
            return replace(self, samples=math.exp(log_m)).log10_gap * math.log(10) <= wanted

        low, high = math.log(2), math.log(MOST_SAMPLES)
        if not enough(high):
            return math.inf
        if enough(low):
            return 2.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return float(math.ceil(math.exp(high)))


def layer_constants(norms: ClassNorms, attention: str, layer_norm: bool) -> tuple[LayerConstants, ...]:
    """Radii, Λ, α, β, γ and η of every layer."""
    log_2, log_h, log_s = math.log(norms.B_2), math.log(norms.H), math.log(norms.L_sigma)
    radii = [_radius(norms, l, layer_norm) for l in range(norms.L + 1)]
    lipschitz = [_lipschitz(norms, radius, attention) for radius in radii[:-1]]
    found = []
    for l, (radius, above) in enumerate(pairwise(radii)):
        attending = math.log(norms.B_P) if attention == "positional" else radius
        found.append(
            LayerConstants(
                B=0.0 if layer_norm else above - math.log(norms.B_X),
                radius=radius,
                attending_radius=attending,
                # Unnormalised, the proof bounds g and σ(g W_1) by B_l B_X; normalised, ‖g‖ <= 1, hence ‖σ(g W_1)‖ <= L_σ B_2.
                mlp_radius=above,
                hidden_radius=log_s + log_2 if layer_norm else above,
                lipschitz=lipschitz[l],
                alpha=sum(lipschitz[l + 1 :]),  # Λ of every later layer, not of every earlier one
                beta=log_s + log_2,
                gamma=math.log(2) + log_s + 3 * log_2 + log_h / 2 + radius + attending,  # 2 L_σ B_2² · √H B_2 · R · ...
                eta=log_h / 2 + log_s + 2 * log_2,
            )
        )
    return tuple(found)


def _radius(norms: ClassNorms, l: int, layer_norm: bool) -> float:
    """log of the largest norm of a row of F_l: B_l B_X with B_l = Λ^l of positional attention; 1 if F_l is normalised."""
    return 0.0 if layer_norm and l else math.log(norms.B_X) + l * _lipschitz(norms, 0.0, "positional")


def _lipschitz(norms: ClassNorms, radius: float, attention: str) -> float:
    """log Λ, Λ = L_σ B_2² sqrt(1 + H B_2² κ²), where κ bounds how far a head's output moves when F moves by one.

    κ = 1 for positional attention. In self-attention the weights move as well: the logits f_iᵀ M f_j move by 2 R B_QK, which
    softmax and the rows of F that it mixes turn into 2 · 2 R B_QK · R. So κ = 1 + 4 R² B_QK.
    """
    log_kappa = 0.0
    if attention == "self-attention" and norms.B_QK > 0:
        log_kappa = log_sum([0.0, math.log(4 * norms.B_QK) + 2 * radius])
    heads = log_sum([0.0, math.log(norms.H) + 2 * math.log(norms.B_2) + 2 * log_kappa])
    return math.log(norms.L_sigma) + 2 * math.log(norms.B_2) + heads / 2


def cover_terms(
    norms: ClassNorms, layers: tuple[LayerConstants, ...], samples: float, layer_norm: bool
) -> tuple[Term, ...]:
    """a_i and b_i of Eq. 18 and 19 for every matrix; a = heads · (radius of what it reads · B_{2,1})² · log(...)."""
    # No dimension of a matrix exceeds (H+1)(d + d_P); the covers hold on m samples of n rows.
    size = math.log(math.log((norms.H + 1) * (norms.d + norms.d_P) * norms.n) + math.log(samples))
    b_w, b_21, log_h = _log(norms.B_w), 2 * math.log(norms.B_21), math.log(norms.H)
    terms = [Term(0, "w", 2 * (_radius(norms, norms.L, layer_norm) + b_w) + math.log(math.log(samples)), 0.0)]
    for l, own in enumerate(layers, start=1):
        parts = {
            "V": (log_h + 2 * own.radius, own.eta),
            "QK": (log_h + 2 * own.attending_radius, own.gamma),
            "W_1": (2 * own.mlp_radius, own.beta),
            "W_2": (2 * own.hidden_radius, 0.0),
        }
        terms += [Term(l, name, a + b_21 + size, b_w + own.alpha + b) for name, (a, b) in parts.items()]
    return tuple(terms)


def log_sum(logs: Iterable[float]) -> float:
    """log Σ exp."""
    values = list(logs)
    largest = max(values)
    return largest + math.log(sum(math.exp(value - largest) for value in values))


def in_digits(log10: float) -> str:
    """A number, given by its decimal logarithm, in two digits: 3.4e+15. Works for numbers that no float holds."""
    power = math.floor(log10)
    digits = f"{10 ** (log10 - power):.1f}"
    if digits == "10.0":
        power, digits = power + 1, "1.0"
    return f"{digits}e{power:+03d}"


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -1e6  # a weight that is zero costs nothing
