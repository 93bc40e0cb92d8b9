"""The last steps of a looped network: Levenberg and Marquardt's, in float64, with attention fixed at its hardmax.

Adam finds which numbers a loop must bring together; after sharpening, each head looks at one candidate, and what remains is a
least-squares problem in the weights of one small tied layer. Its P unknowns are few, so the normal equations can be solved:

    (JᵀJ + λ mean(diag JᵀJ) I) δ = Jᵀ r,        J the Jacobian of the answers, r their errors,

with λ divided by 4 after a step that lowers the error and multiplied by 4 until one does. Every step takes
other training lists. The network that comes out is kept if it is better on the training lists than the one that went in.

Letters: P weights, L lists a step, n numbers a list, λ damping.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.nn.functional import one_hot

from posattn.config import ModelConfig
from posattn.training.program import LOGITS, Parameters
from posattn.training.workers import Workers

_LISTS = 400  # of a step: of 16 numbers, more equations than there are weights
_WEIGHTS = 6000  # at most: a matrix of as many rows and columns is solved at every step
_ENTRIES = {"cpu": 1_000_000, "cuda": 40_000_000}  # of the Jacobian at once: what fits a cache, or fills a GPU
_CERTAIN = 200.0  # sharpened logits this far apart make softmax hardmax
_LEAST, _MOST = 1e-16, 1e8  # λ


def polish(
    parameters: Parameters, x: Float[Tensor, "M S n"], y: Float[Tensor, "M S n"], steps: int, workers: Workers
) -> tuple[Parameters, list[bool]]:
    """The parameters after ``steps`` steps on the training lists, and which members are the better for it.

    Networks of more than 6,000 weights are left as they are.
    """
    if parameters.flat.shape[1] > _WEIGHTS:
        return parameters, [False] * len(parameters.flat)

    def one(member: int) -> tuple[Tensor, bool]:
        old, lists, answers = parameters.flat[member], x[member].double(), y[member].double()
        fit = _Fit(parameters)
        new = fit.run(fit.hardened(old.double()), lists, answers, steps).to(old.dtype)
        before, after = (fit.error(row.double(), lists[-_LISTS:], answers[-_LISTS:]) for row in (old, new))
        return (new, True) if after < before else (old, False)

    rows, better = zip(*workers.map(one, range(len(parameters.flat))), strict=True)
    return Parameters(parameters.config, torch.stack(rows)), list(better)


class _Fit:
    """Least squares in the weights of one member, a row of P numbers."""

    def __init__(self, parameters: Parameters):
        assert isinstance(parameters.config, ModelConfig) and parameters.config.sharpness is not None
        self.parameters, self.sharpness = parameters, parameters.config.sharpness
        self.network = parameters.model(0).double()
        self.jacobian = vmap(jacrev(lambda row, x: self.answers(row, x[None])[0]), in_dims=(None, 0))

    def answers(self, row: Float[Tensor, " P"], x: Float[Tensor, "L n"]) -> Float[Tensor, "L n"]:
        own = {name: value[0] for name, value in self.parameters.by_name(row[None]).items()}
        out: Tensor = functional_call(self.network, own, (x,))
        return out

    @torch.no_grad()
    def error(self, row: Float[Tensor, " P"], x: Float[Tensor, "L n"], y: Float[Tensor, "L n"]) -> float:
        return (self.answers(row, x) - y).square().mean().item()

    def hardened(self, row: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        """The row with logits whose softmax is 1 at the largest and 0 elsewhere; so flat there that no step moves them."""
        row = row.clone()
        logits = self.parameters.by_name(row[None])[LOGITS]  # a view
        logits.copy_(one_hot(logits.argmax(dim=-1), logits.shape[-1]) * (_CERTAIN / self.sharpness))
        return row

    @torch.no_grad()
    def run(
        self, row: Float[Tensor, " P"], lists: Float[Tensor, "S n"], answers: Float[Tensor, "S n"], steps: int
    ) -> Float[Tensor, " P"]:
        damping, count = 1e-3, min(_LISTS, len(lists))
        for step in range(steps):
            chosen = (torch.arange(count, device=row.device) + step * count) % len(lists)
            x, y = lists[chosen], answers[chosen]
            squares, slope = self._normal_equations(row, x, y)
            unit = torch.eye(len(row), dtype=row.dtype, device=row.device) * squares.diagonal().mean()
            before = self.error(row, x, y)
            while damping < _MOST:
                root, failed = torch.linalg.cholesky_ex(squares + damping * unit)
                there = row - torch.cholesky_solve(slope[:, None], root)[:, 0]
                if not failed and self.error(there, x, y) < before:  # false of nan too
                    row, damping = there, max(damping / 4, _LEAST)
                    break
                damping *= 4
            else:
                break
        return row

    def _normal_equations(
        self, row: Float[Tensor, " P"], x: Float[Tensor, "L n"], y: Float[Tensor, "L n"]
    ) -> tuple[Float[Tensor, "P P"], Float[Tensor, " P"]]:
        """JᵀJ and Jᵀ r."""
        squares, slope = row.new_zeros(len(row), len(row)), row.new_zeros(len(row))
        at_once = max(1, _ENTRIES[row.device.type] // (x.shape[1] * len(row)))
        for some, wanted in zip(x.split(at_once), y.split(at_once), strict=True):
            jacobian = self.jacobian(row, some).flatten(0, 1)
            squares.addmm_(jacobian.mT, jacobian)
            slope.addmv_(jacobian.mT, (self.answers(row, some) - wanted).flatten())
        return squares, slope
