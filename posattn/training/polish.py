"""The last steps of a looped network: Levenberg-Marquardt in float64, with attention fixed at one candidate per head.

With attention fixed, what remains is a least-squares problem in the weights of one small tied layer:

    (H + λ mean(diag H) I) δ = Jᵀ r,    H ← μ H + JᵀJ,        J the Jacobian of the answers, r their errors,

with λ divided by 4 after a move that lowers the error and multiplied by 4 until one does. docs/any-length.md gives the
reasons for each part: the memory μ, other lists for every move (``vary_lists``), and moves that join stretches in
random orders (``OrderedScan``).

Letters: P weights, L lists per move, n numbers per list, N answers to it, λ damping, μ memory, u uniform on [0, 1).
"""

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.functional import one_hot

from posattn import streams
from posattn.looped.families import FAMILIES, Loop
from posattn.looped.looped_model import LoopedConfig, LoopedTransformer
from posattn.metrics import exact_answers
from posattn.tasks import Task
from posattn.training.parameters import Parameters
from posattn.training.workers import Workers

_LISTS = 200  # per move: with 16 numbers each, more equations than there are weights
_OTHERS = 2  # moves per step in other orders than that of the loops
_JUDGES = 400  # training lists that decide between the old and the new network
_MANY = 10  # times as many lists are tried as are taken, which are the worst
_MEMORY = 0.6  # μ
_WEIGHTS = 6000  # at most: a matrix of as many rows and columns is solved at every move
_ENTRIES = {"cpu": 1_000_000, "cuda": 40_000_000}  # of the Jacobian at once: what fits in a cache, or fills a GPU
_CERTAIN = 200.0  # sharpened logits this far apart make softmax hardmax
_SINK = 0.99  # a head with less weight on the sink contributes something
_FEW = 4  # heads: up to so many, every combination of faithful heads is tried
_VALUES = "layers.0.attention.W_V.weight"
_LEAST, _MOST = 1e-8, 1e8  # λ: less lets weights that no list tests drift away
_DECADES = 4.0  # small numbers of a varied list are up to 10^4 times smaller
_OVER = 1.2  # times the mean is subtracted at most, so that some drifts change sign

Row = Float[Tensor, " P"]  # the weights of one member
Lists = Float[Tensor, "L n"]
Answers = Float[Tensor, "L N"]
Key = Int64[Tensor, ""]
Order = tuple[tuple[int, int], ...]  # how many numbers the earlier and the later stretch of each join have
Report = Callable[[int, float], None]  # of how many more steps are done, and of the error before the last move


def polish(
    parameters: Parameters,
    x: Float[Tensor, "M S n"],
    tasks: Sequence[Task],
    steps: int,
    workers: Workers,
    report: Report = lambda *_: None,
    lengths: Sequence[int] = (),
) -> tuple[Parameters, list[bool]]:
    """The parameters after ``steps`` steps on the training lists x, and per member whether they replaced the old ones.

    ``lengths`` are those of the shorter lists that the networks were trained on. Networks of more than 6,000 weights are
    left as they are.
    """
    if parameters.flat.shape[1] > _WEIGHTS:
        return parameters, [False] * len(parameters.flat)
    # On a GPU the first call must not come from two threads at once.
    torch.linalg.cholesky_ex(torch.eye(1, device=x.device))

    def one(member: int) -> tuple[Tensor, bool]:
        old, lists = parameters.flat[member], x[member].double()
        fit, judges = _Fit(parameters, tasks[member], lengths), lists[-_JUDGES:]
        ways = [fit.hardened(old.double(), faithful) for faithful in _ways(fit.heads)]
        start = min(ways, key=lambda row: fit.error(row, judges))
        new = fit.run(start, lists, steps, report).to(old.dtype)
        better = fit.error(new.double(), judges) < fit.error(old.double(), judges)
        return (new, True) if better else (old, False)

    rows, better = zip(*workers.map(one, range(len(parameters.flat))), strict=True)
    return Parameters(parameters.config, torch.stack(rows)), list(better)


def _ways(heads: int) -> Iterable[tuple[bool, ...]]:
    """Which heads are ``faithful`` (see ``hardened``): every combination of a few heads, none or all of many."""
    if heads <= _FEW:
        return product((False, True), repeat=heads)
    return [(faithful,) * heads for faithful in (False, True)]


class _Fit:
    """Least squares in the weights of one member, a row of P numbers."""

    def __init__(self, parameters: Parameters, task: Task, lengths: Sequence[int] = ()):
        config, network = parameters.config, parameters.model(0).double()
        assert isinstance(config, LoopedConfig) and isinstance(network, LoopedTransformer)
        self.parameters, self.task, self.scan = parameters, task, OrderedScan(network)
        self.heads, self.sharpness = config.heads, config.sharpness
        self.scans = config.family == "dilated" and config.stay
        self.shorter = () if self.scans else tuple(lengths)

    def answers(self, row: Row, x: Lists, order: Order | None) -> Answers:
        """Per list the answers to its n numbers, then those to the shorter lists that it begins with."""
        own = {f"network.{name}": value[0] for name, value in self.parameters.by_name(row[None]).items()}
        return torch.cat([functional_call(self.scan, own, (each, order)) for each in self._cut(x)], dim=-1)

    def target(self, x: Lists) -> Answers:
        return torch.cat([exact_answers(self.task, each) for each in self._cut(x)], dim=-1)

    def _cut(self, x: Lists) -> list[Tensor]:
        return [x, *(x[:, :length] for length in self.shorter)]

    @torch.no_grad()
    def error(self, row: Row, x: Lists, order: Order | None = None) -> float:
        return (self.answers(row, x, order) - self.target(x)).square().mean().item()

    def hardened(self, row: Row, faithful: Sequence[bool]) -> Row:
        """The row with logits whose softmax is 1 at the largest and 0 elsewhere, and so flat that no step moves them.

        A ``faithful`` head goes to the sink only if almost all its weight is there. Its values are scaled by the weight of
        its strongest candidate, so that it contributes about as much as before.
        """
        row = row.clone()
        named = self.parameters.by_name(row[None])  # views
        logits, values = named[LoopedConfig.sharpened], named[_VALUES]
        a = (self.sharpness * logits).softmax(dim=-1)
        for head, by_head in enumerate(values.unflatten(1, (self.heads, -1)).unbind(1)):
            if faithful[head]:
                a[:, head, :, -1] *= a[:, head, :, -1] >= _SINK
                by_head.mul_(a[:, head].amax(dim=-1).mean(dim=-1)[:, None, None])
        logits.copy_(one_hot(a.argmax(dim=-1), a.shape[-1]) * (_CERTAIN / self.sharpness))
        return row

    def joins_neighbours(self, row: Row) -> bool:
        """Whether a loop joins two neighbouring stretches, so that other orders of joining give the same answers.

        A head that looks further back, at r = -2 or -3, attends to a third stretch or leaves a gap.
        """
        if not self.scans:
            return False
        looks = self.parameters.by_name(row[None])[LoopedConfig.sharpened].argmax(dim=-1)
        far = [place for place, r in enumerate(FAMILIES["dilated"].candidates) if r < -1]
        return not torch.isin(looks, torch.tensor(far, device=row.device)).any()

    @torch.no_grad()
    def run(self, row: Row, lists: Float[Tensor, "S n"], steps: int, report: Report = lambda *_: None) -> Row:
        damping, remembered = 1e-3, row.new_zeros(len(row), len(row))
        moves = 1 + _OTHERS if self.joins_neighbours(row) else 1
        for number in range(steps * moves):
            order = random_order(lists.shape[1], number) if number % moves else None
            x = self._lists_of(number, row, lists, order)
            squares, slope = self._normal_equations(row, x, order)
            remembered = _MEMORY * remembered + squares
            unit = torch.eye(len(row), dtype=row.dtype, device=row.device) * remembered.diagonal().mean()
            before = self.error(row, x, order)
            while damping < _MOST:
                root, failed = torch.linalg.cholesky_ex(remembered + damping * unit)
                there = row - torch.cholesky_solve(slope[:, None], root)[:, 0]
                if not failed and self.error(there, x, order) < before:  # nan is not
                    row, damping = there, max(damping / 4, _LEAST)
                    break
                damping *= 4
            else:
                report(steps - number // moves, before)
                break
            if (number + 1) % moves == 0:
                report(1, before)
        return row

    def _lists_of(self, number: int, row: Row, lists: Float[Tensor, "S n"], order: Order | None) -> Lists:
        """The lists of a move: half in turn, and half the worst of many others."""
        half = max(1, min(_LISTS, len(lists)) // 2)
        chosen = (torch.arange((1 + _MANY) * half, device=row.device) + number * half) % len(lists)
        key = torch.tensor(streams.stream(number, "polish"), device=row.device)
        x, others = vary_lists(lists[chosen], key).tensor_split([half])
        errors = (self.answers(row, others, order) - self.target(others)).square().sum(dim=1)
        return torch.cat([x, others[errors.topk(half).indices]])

    def _normal_equations(self, row: Row, x: Lists, order: Order | None) -> tuple[Float[Tensor, "P P"], Row]:
        """JᵀJ and Jᵀ r."""
        squares, slope = row.new_zeros(len(row), len(row)), row.new_zeros(len(row))
        jacobian_of = vmap(jacrev(lambda row, x: self.answers(row, x[None], order)[0]), in_dims=(None, 0))
        answers = x.shape[1] + sum(self.shorter)
        for some in x.split(max(1, _ENTRIES[row.device.type] // (answers * len(row)))):
            jacobian = jacobian_of(row, some).flatten(0, 1)
            squares.addmm_(jacobian.mT, jacobian)
            slope.addmv_(jacobian.mT, (self.answers(row, some, order) - self.target(some)).flatten())
        return squares, slope


def random_order(n: int, number: int) -> Order:
    """A random order: each join puts the longest stretch so far beside itself or a shorter one, until n numbers are joined."""
    draw, lengths, joins = random.Random(streams.stream(number, "joins", n)), [1], []
    while lengths[-1] < n:
        pair = [lengths[-1], draw.choice(lengths)]
        draw.shuffle(pair)
        joins.append((pair[0], pair[1]))
        lengths.append(sum(pair))
    return tuple(joins)


class OrderedScan(nn.Module):
    """The scan of a looped network in a given order, or without one in that of its loops.

    On lists of 16 the loops test the whole state of stretches of up to 8 numbers, other orders that of longer ones.
    """

    def __init__(self, network: LoopedTransformer):
        super().__init__()
        self.network = network

    def forward(self, x: Float[Tensor, "*batch n"], order: Order | None = None) -> Float[Tensor, "*batch n"]:
        if order is None:
            return self.network(x)
        n, state = x.shape[-1], self.network.encoder(x[..., None])
        stretches = {1: state}  # by length, the states of the stretches that end at each position
        for earlier, later in order:
            # Both lists in one: from a position of the second, n + later back is where, in the first, the earlier stretch ends.
            both = torch.cat([stretches[earlier], stretches[later]], dim=-2)
            state = stretches[earlier + later] = self.network.layer(both, Loop(n + later))[..., n:, :]
        return self.network.decoder(state)[..., 0]


def vary_lists(x: Lists, key: Key) -> Lists:
    """A quarter of the lists as they are and a quarter by each function below, all scaled to the largest number in x.

    The network is homogeneous, so only the direction of a state matters; these reach some that short lists seldom do.
    """
    lists = x.clone()
    for kind, vary in enumerate((_less_drift, _some_small, _signs_in_runs), start=1):
        lists[kind::4] = vary(x[kind::4], streams.fold_in(key, kind))
    largest = lists.abs().amax(dim=1, keepdim=True)
    return lists * torch.where(largest > 0, x.abs().max() / largest, 1.0)


def _less_drift(x: Lists, key: Key) -> Lists:
    """Each list with a random share of its mean subtracted."""
    share = _OVER * streams.uniform(key, len(x)).to(x.dtype)
    return x - share[:, None] * x.mean(dim=1, keepdim=True)


def _some_small(x: Lists, key: Key) -> Lists:
    """Each list with some numbers scaled down, by one factor per list; in half of the lists the others become negative."""
    u = streams.uniform(key, len(x) * (x.shape[1] + 3)).to(x.dtype).unflatten(0, (len(x), -1))
    share, decades, sign, each = u.split([1, 1, 1, x.shape[1]], dim=1)
    others = torch.where(sign < 0.5, -x.abs(), x)
    return torch.where(each < share, x * 10 ** (-_DECADES * decades), others)


def _signs_in_runs(x: Lists, key: Key) -> Lists:
    """Each list with signs that seldom change, with one probability per list."""
    u = streams.uniform(key, len(x) * (x.shape[1] + 1)).to(x.dtype).unflatten(0, (len(x), -1))
    changes = (u[:, 1:] < u[:, :1] / 2).cumsum(dim=1)
    return x.abs() * (1 - 2 * (changes % 2))
