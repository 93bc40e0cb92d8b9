"""A compiled network in plain PyTorch, read from a folder that ``benchmarks/interpretability.py --export`` writes.

It needs torch and safetensors, and nothing of posattn: ``python plain_network.py FOLDER`` runs it on the folder's inputs.
Letters: B inputs, n machines, N positions (the machines and a blank one), c numbers per input, d width of the state, H heads.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file


class PlainNetwork:
    """X -> Φ((⊕_h A_h X W_V,h) W_O ⊕ X) in every layer; A_h depends on positions alone, and is hardmax."""

    def __init__(self, weights, labels):
        self.weights, self.labels = weights, labels
        self.n, self.N, self.heads, self.layers = (labels[key] for key in ("machines", "positions", "heads", "layers"))

    @classmethod
    def read(cls, folder):
        folder = Path(folder)
        return cls(load_file(folder / "weights.safetensors"), json.loads((folder / "labels.json").read_text()))

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def encode(self, x):
        """(B, n, c) inputs to (B, N, d) states: every machine reads its input and its number; the blank one reads zeros."""
        words = torch.zeros(len(x), self.N, x.shape[-1] + 1, dtype=torch.float64)
        words[:, : self.n, :-1] = x
        words[..., -1] = torch.arange(self.N)
        return self.linear("encoder", words)

    def attention(self, layer):
        """(H, N, N): 1 where a position (row) listens to another (column). Encodings of positions are one-hot."""
        one_hot = torch.eye(self.N, dtype=torch.float64)
        q, k = (
            self.linear(f"layers.{layer}.attention.{name}", one_hot).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            for name in ("W_Q", "W_K")
        )
        logits = q @ k.mT
        return (logits == logits.amax(dim=-1, keepdim=True)).double()

    def layer(self, index, state):
        name = f"layers.{index}"
        values = self.linear(f"{name}.attention.W_V", state).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        mixed = (self.attention(index) @ values).transpose(1, 2).flatten(-2)
        hidden = torch.cat([self.linear(f"{name}.attention.W_O", mixed), state], dim=-1)
        depth = sum(key.startswith(f"{name}.between.") for key in self.weights) // 2  # weights and biases
        for linear in (f"{name}.W_1", *(f"{name}.between.{each}" for each in range(depth))):
            hidden = torch.relu(self.linear(linear, hidden))
        return self.linear(f"{name}.W_2", hidden)

    def states(self, x):
        """The states (B, N, d) after every layer, for inputs (B, n, c)."""
        return self.after(self.encode(x), 0)

    def after(self, state, first):
        """The states after layer ``first`` and all that follow, from the state before it."""
        found = []
        for index in range(first, self.layers):
            state = self.layer(index, state)
            found.append(state)
        return found

    def answers(self, state):
        """(B, n, outputs) from the last state."""
        return self.linear("decoder", state)[:, : self.n]


if __name__ == "__main__":
    network, data = PlainNetwork.read(sys.argv[1]), load_file(Path(sys.argv[1]) / "data.safetensors")
    error = (network.answers(network.states(data["inputs"])[-1]) - data["answers"]).abs().max().item()
    print(f"{network.labels['program']}: {len(data['inputs'])} inputs, largest error of an answer {error:.1e}")
