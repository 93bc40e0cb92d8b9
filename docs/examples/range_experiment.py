"""An experiment of one's own: a new task, a new encoding and a network from elsewhere.

posattn reproduce docs/examples/range_experiment.py --scale smoke
"""

import torch
from torch import nn

from posattn.encodings import ENCODINGS, Encoding
from posattn.experiments import Experiment, Grid, Series, series
from posattn.network import own_network
from posattn.tasks import Task, register


def range_so_far(x: torch.Tensor) -> torch.Tensor:
    """y_i = max(x_1..x_i) - min(x_1..x_i)."""
    return x.cummax(dim=-1).values - x.cummin(dim=-1).values


def polynomial(positions: int, dim: int) -> torch.Tensor:
    """Row i is u, u², ..., u^d_P with u = i / (N - 1)."""
    u = torch.linspace(0, 1, positions)[:, None]
    return u ** torch.arange(1, dim + 1)


class Recurrent(nn.Module):
    """h_i = relu(h_{i-1} W + x_i v + b), y_i = h_i u."""

    def __init__(self, n: int, width: int = 32):
        super().__init__()
        self.width = width
        self.inner, self.outer, self.readout = nn.Linear(width, width), nn.Linear(1, width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, answers = x.new_zeros(*x.shape[:-1], self.width), []
        for number in x.split(1, dim=-1):
            h = torch.relu(self.inner(h) + self.outer(number))
            answers.append(self.readout(h))
        return torch.cat(answers, dim=-1)


register(Task("range", "cumulative range", range_so_far))
ENCODINGS["polynomial"] = Encoding(lambda n, positions: 4, polynomial)

EXPERIMENT = Experiment(
    "range",
    "not in the paper",
    "a cumulative range, three ways",
    Grid(
        ("range",),
        (
            *series("scale-exact"),
            Series("scale-exact, polynomial", {"arch": "scale-exact", "encoding": "polynomial"}),
            Series("recurrent, width 64", {"width": 64}, own_network("recurrent", Recurrent)),
        ),
        seeds=5,
    ),
)
