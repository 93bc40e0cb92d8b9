"""Interpretability methods against networks whose every variable and message is known (docs/interpretability.md).

    python benchmarks/interpretability.py                            scores a linear probe and activation patching
    python benchmarks/interpretability.py --export FOLDER            the five networks as plain PyTorch state, with labels
    python benchmarks/interpretability.py --export FOLDER --rotate 0  with variables as directions in place of columns

Letters: B inputs, n machines, c numbers per input, d width of the state, L layers, T variables.
"""

import argparse
import json
import runpy
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file

from posattn.compiler import Compilation, compile_program
from posattn.compiler.expressions import evaluate_expressions
from posattn.compiler.interpreter import values_of
from posattn.compiler.pcoc import IDLE
from posattn.compiler.pcoc_to_weights import listens_to

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
RUNNER = EXAMPLES / "plain_network.py"
PlainNetwork = runpy.run_path(str(RUNNER))["PlainNetwork"]

PROGRAMS = {
    "prefix-sum": "prefix-sum",
    "max-subarray": "max-subarray",
    "bitonic-sort": "bitonic-sort",
    "bfs": f"{EXAMPLES}/programs.py:bfs",
    "khop": "khop",
}
MACHINES = 8
BOUND = 10.0  # of real inputs
PRESENT = 0.99  # R² from which a probe says that a variable is present
MOVED = 1e-6  # an effect on an answer from which on it counts as one


@dataclass(frozen=True)
class Variable:
    """A value of the program that has a name. ``columns`` says which column of the state holds it, by layer."""

    name: str
    index: int  # among the values of the program
    columns: dict[int, int]


class Case:
    """A compiled network as plain PyTorch state, its inputs, and the ground truth. ``rotate`` seeds an orthogonal matrix."""

    def __init__(self, name: str, inputs: int = 600, machines: int = MACHINES, rotate: int | None = None):
        self.name = name
        self.compiled: Compilation = compile_program(PROGRAMS[name], machines, bound=BOUND)
        self.program = self.compiled.program
        source = self.compiled.source
        assert source is not None
        self.x = source.sample(np.random.default_rng(0), inputs, machines, BOUND)
        self.turn = _orthogonal(self.compiled.model.config.embed, rotate)  # row c is the direction that holds column c
        self.network = PlainNetwork(_turned(self.compiled.model, self.turn), self._labels())
        with torch.no_grad():
            self.states = self.network.states(torch.from_numpy(self.x))

    @cached_property
    def variables(self) -> list[Variable]:
        """Named values that depend on the data; one of several names is called by the first."""
        found: dict[int, Variable] = {}
        for layer, names in enumerate(self.program.variables):
            for name, (value, column) in names.items():
                if value.pure is None:
                    new = Variable(f"{name}@{layer}", value.index, {})
                    found.setdefault(value.index, new).columns.setdefault(layer, column)
        return list(found.values())

    @cached_property
    def values(self) -> np.ndarray:
        """(B, n, T): the variables, by the program's own interpreter."""
        return values_of(self.program.tracing, self.x)[..., [each.index for each in self.variables]]

    def communication(self, layer: int) -> np.ndarray:
        """(heads, n): the machine that each machine hears; n if none."""
        return listens_to(self.program, layer)[:, :-1]

    def _labels(self) -> dict:
        config, outputs = self.compiled.model.config, len(self.program.outputs)
        heard = [np.where(each < config.n, each, IDLE) for each in map(self.communication, range(config.layers))]
        return {
            "program": self.name,
            "machines": config.n,
            "positions": config.positions,
            "layers": config.layers,
            "heads": config.heads,
            "width": config.embed,
            "outputs": outputs,
            "rounds": list(self.compiled.model.labels.rounds),
            "variables": [
                {"name": each.name, "columns": {str(layer): column for layer, column in each.columns.items()}}
                for each in self.variables
            ],
            "communication": [[[None if i < 0 else i for i in head] for head in layer.tolist()] for layer in heard],
        }

    def export(self, folder: Path) -> None:
        """Writes weights, labels, data and the program that runs them without posattn."""
        folder.mkdir(parents=True, exist_ok=True)
        _save(self.network.weights, folder / "weights.safetensors")
        (folder / "labels.json").write_text(json.dumps(self.network.labels, indent=1) + "\n")
        data = {"inputs": torch.from_numpy(self.x), "answers": torch.from_numpy(self.compiled.run(self.x))}
        traced = {f"variables.{each.name}": torch.from_numpy(self.values[..., t]) for t, each in enumerate(self.variables)}
        _save(data | traced | {"directions": self.turn}, folder / "data.safetensors")
        shutil.copy(RUNNER, folder / RUNNER.name)

    # --- intervened runs of the program itself --------------------------------------------------------------------------

    @cached_property
    def _locals(self) -> list:
        return [self.program.local(r) for r in range(len(self.program.rounds) + 1)]

    def memories(self, memory: np.ndarray, first: int) -> list[np.ndarray]:
        """The memories (..., n, s) after round ``first`` and all that follow, from those before it, without a network."""
        found, me = [], np.arange(self.program.machines, dtype=float)
        for r in range(first, len(self._locals)):
            if r:
                table = self.program.sources[r - 1]
                memory = np.take_along_axis(memory, np.broadcast_to(np.maximum(table, 0), memory.shape), axis=-2)
                memory = np.where(table == IDLE, 0.0, memory)
            memory = np.stack(evaluate_expressions(self._locals[r], memory, me), axis=-1)
            found.append(memory)
        return found

    @cached_property
    def memory(self) -> list[np.ndarray]:
        """The memories after every round, for the case's inputs."""
        start = np.zeros((len(self.x), self.program.machines, self.program.memory))
        start[..., : self.x.shape[-1]] = self.x
        return self.memories(start, 0)


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file({name: value.contiguous() for name, value in tensors.items()}, path)


def _orthogonal(d: int, seed: int | None) -> torch.Tensor:
    if seed is None:
        return torch.eye(d, dtype=torch.float64)
    return torch.from_numpy(np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0])


def _turned(model: torch.nn.Module, turn: torch.Tensor) -> dict[str, torch.Tensor]:
    """The weights of the network whose state is X times ``turn``, and whose answers are the same."""
    reads = torch.block_diag(turn, turn)  # W_1 reads what was heard, and X
    found = {}
    for name, value in model.state_dict().items():
        part, kind = name.split(".")[-2:]
        if part in ("encoder", "W_O", "W_2"):  # they write X
            value = turn.T @ value
        elif kind == "weight" and part in ("W_V", "decoder"):
            value = value @ turn
        elif kind == "weight" and part == "W_1":
            value = value @ reads
        found[name] = value.detach().clone()
    return found


# --- a linear probe -----------------------------------------------------------------------------------------------------


@dataclass
class Probe:
    """Linear readings of every variable after every layer, from the state of the machine whose variable it is."""

    r2: np.ndarray  # (T, L), on inputs that it was not fitted to
    directions: np.ndarray  # (T, L, d)


def probe(case: Case) -> Probe:
    """Least squares on the first half of the inputs, with one reading for all machines; tested on the second half."""
    half, n = len(case.x) // 2, case.network.n
    values = case.values
    wanted = values.shape[-1]
    seen, unseen = (values[part].reshape(-1, wanted) for part in (slice(half), slice(half, None)))
    spread = ((unseen - unseen.mean(axis=0)) ** 2).sum(axis=0)
    r2, directions = [], []
    for state in case.states:
        rows = [state[part, :n].flatten(0, 1).numpy() for part in (slice(half), slice(half, None))]
        centre, middle = rows[0].mean(axis=0), seen.mean(axis=0)
        weights = np.linalg.lstsq(rows[0] - centre, seen - middle, rcond=1e-9)[0]
        error = (((rows[1] - centre) @ weights + middle - unseen) ** 2).sum(axis=0)
        r2.append(np.where(spread > 0, 1 - error / np.where(spread > 0, spread, 1), np.nan))
        directions.append(weights.T)
    return Probe(np.stack(r2, axis=1), np.stack(directions, axis=1))


def present(case: Case) -> np.ndarray:
    """(T, L): whether a column is labelled with the variable after a layer."""
    return np.array([[layer in each.columns for layer in range(case.network.layers)] for each in case.variables])


def copied(case: Case) -> np.ndarray:
    """(T, L): whether some column of the program's memory equals the variable at all machines, labelled or not."""
    columns = np.stack([memory[:, : case.network.n] for memory in case.memory])  # (L, B, n, s)
    variables = np.moveaxis(case.values, -1, 0)[..., None]
    return np.array([[(layer == variable).all(axis=(0, 1)).any() for layer in columns] for variable in variables])


def probe_scores(case: Case, found: Probe) -> dict[str, object]:
    truth, known = present(case), ~np.isnan(found.r2)
    said = known & (found.r2 >= PRESENT)
    beyond = said & ~truth
    return {
        "variables × layers": int(known.sum()),
        "labelled": int((truth & known).sum()),
        "AUROC": auroc(found.r2[known], truth[known]),
        **precision_recall(said[known], truth[known]),
        "found, not labelled: a copy": int((beyond & copied(case)).sum()),
        "found, not labelled: no copy": int((beyond & ~copied(case)).sum()),
    }


def auroc(scores: np.ndarray, truth: np.ndarray) -> float:
    """The probability that a true case scores above a false one; ties count half."""
    a, b = scores[truth], scores[~truth]
    if not len(a) or not len(b):
        return float("nan")
    return float(((a[:, None] > b).mean() + (a[:, None] >= b).mean()) / 2)


def precision_recall(said: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    hits = float((said & truth).sum())
    return {"precision": hits / max(1, said.sum()), "recall": hits / max(1, truth.sum())}


# --- activation patching ------------------------------------------------------------------------------------------------


def patch_variables(case: Case, pairs: int, directions: np.ndarray | None = None) -> dict[str, float]:
    """Moves one variable of one machine after one layer to its value in another run, and looks at all answers.

    Without ``directions`` (T, L, d) along the true one. The truth is the program, run on from the same intervention.
    """
    n, k = case.network.n, pairs
    clean, other = slice(0, k), slice(k, 2 * k)
    outputs = list(case.program.outputs)
    plain = case.network.answers(case.states[-1])[clean]
    right = torch.from_numpy(case.memory[-1][clean][:, :n, outputs])
    effects, truths = [], []
    for t, variable in enumerate(case.variables):
        for layer, column in variable.columns.items():
            if layer == case.network.layers - 1:
                continue  # the answer itself
            direction = case.turn[column] if directions is None else torch.from_numpy(directions[t, layer])
            state = case.states[layer]
            length = (direction @ direction).clamp_min(1e-300)
            move = ((state[other] - state[clean]) @ direction)[..., None] * direction / length
            # One copy of the batch for each machine that is patched.
            chosen = torch.eye(n, case.network.N, dtype=torch.float64)[:, None, :, None]
            patched = (state[clean] + chosen * move).flatten(0, 1)
            effects.append(_moved(case.network.answers(case.network.after(patched, layer + 1)[-1]), plain, n))
            memory = case.memory[layer]
            mixed = np.repeat(memory[clean][None], n, axis=0)
            mixed[range(n), :, range(n), column] = memory[other][:, :n, column].T
            answers = case.memories(mixed, layer + 1)[-1][:, :, :n, outputs]
            truths.append(torch.from_numpy(answers) - right)
    effect, truth = torch.stack(effects), torch.stack(truths)
    scores = precision_recall((effect.abs() > MOVED).numpy(), (truth.abs() > MOVED).numpy())
    return {"patches": effect.shape[0] * n, **scores, "error": ((effect - truth).abs().sum() / truth.abs().sum()).item()}


def _moved(answers: torch.Tensor, plain: torch.Tensor, n: int) -> torch.Tensor:
    return answers.unflatten(0, (n, -1)) - plain


def patch_machines(case: Case, pairs: int) -> dict[str, float]:
    """Replaces the state of one machine after a layer by that of another run; whose next state changes hears it."""
    n, k = case.network.n, pairs
    said, truth = [], []
    for layer in range(case.network.layers - 1):
        state, after = case.states[layer], case.states[layer + 1][:k, :n]
        chosen = torch.eye(n, case.network.N, dtype=torch.bool)[:, None, :, None]
        patched = torch.where(chosen, state[k : 2 * k], state[:k]).flatten(0, 1)
        moved = _moved(case.network.layer(layer + 1, patched)[:, :n], after, n).abs()
        said.append((moved > MOVED).flatten(3).any(dim=3).any(dim=1).numpy())  # (patched, hearing)
        heard = case.communication(layer + 1)
        truth.append(np.array([[(heard[:, j] == i).any() for j in range(n)] for i in range(n)]))
    others = ~np.eye(n, dtype=bool)
    return precision_recall(np.stack(said)[:, others], np.stack(truth)[:, others])


def scores(name: str, inputs: int = 600, pairs: int = 40, machines: int = MACHINES) -> dict[str, dict[str, object]]:
    """Everything about one network: its sizes, and the scores of the methods."""
    plain, turned = (Case(name, inputs, machines, rotate) for rotate in (None, 0))
    found = probe(turned)
    sizes = {
        "layers": plain.network.layers,
        "heads": plain.network.heads,
        "width": plain.compiled.model.config.embed,
        "parameters": sum(value.numel() for value in plain.network.weights.values()),
    }
    return {
        "network": sizes,
        "probe": probe_scores(turned, found),
        "patch, columns": patch_variables(plain, pairs),
        "patch, true directions, rotated": patch_variables(turned, pairs),
        "patch, directions of the probe, rotated": patch_variables(turned, pairs, found.directions),
        "patch, machines, rotated": patch_machines(turned, pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", type=Path, help="folder for the networks; nothing is scored then")
    parser.add_argument("--rotate", type=int, help="seed of the rotation of exported networks (default: none)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.export is not None:
        for name in PROGRAMS:
            Case(name, rotate=given.rotate).export(given.export / name)
            print(f"{given.export / name}")
        return
    rows: dict[str, dict[str, dict[str, object]]] = {}
    for name in PROGRAMS:
        for table, row in scores(name).items():
            rows.setdefault(table, {})[name] = row
    for table, found in rows.items():
        print(f"\n{table}\n{pd.DataFrame.from_dict(found, orient='index').to_string(float_format='{:.3g}'.format)}")


if __name__ == "__main__":
    main()
