"""What a program's variables are in a compiled network: their columns of the state, and their values for an input."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posattn import files
from posattn.compiler.expressions import Array
from posattn.errors import UsageError


@dataclass(frozen=True)
class Labels:
    """The program's own words for the layers of its network. Layer r computes round r.

    rounds: how errors call every round.
    columns: the columns of X that hold variables after every round, by name.
    """

    rounds: tuple[str, ...]
    columns: tuple[dict[str, int], ...]


def answer_columns(count: int) -> dict[str, int]:
    """The columns of the answers after the last round."""
    return {"answer": 0} if count == 1 else {f"answer[{at}]": at for at in range(count)}


@dataclass(frozen=True)
class Trace:
    """Every variable at every machine when a round ends. ``rounds[r][name]`` is an array (..., n) over the machines."""

    program: str
    places: tuple[str, ...]
    rounds: tuple[dict[str, Array], ...]

    def __getitem__(self, name: str) -> dict[int, Array]:
        """A variable by round, in the rounds at whose end it is kept."""
        found = {r: variables[name] for r, variables in enumerate(self.rounds) if name in variables}
        if not found:
            raise UsageError(f"{self.program} has no variable {name}; it has {', '.join(self.names)}.")
        return found

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for variables in self.rounds for name in variables))

    def table(self) -> pd.DataFrame:
        """For one input: a row per round and variable, and a column per machine."""
        return pd.DataFrame(
            {"round": r, "variable": name} | dict(enumerate(values.tolist()))
            for r, variables in enumerate(self.rounds)
            for name, values in variables.items()
        )

    def as_json(self) -> dict[str, Any]:
        rounds = [
            {"round": r, "at": place, "variables": {name: values.tolist() for name, values in variables.items()}}
            for r, (place, variables) in enumerate(zip(self.places, self.rounds, strict=True))
        ]
        return {"program": self.program, "rounds": rounds}

    def save(self, path: str | Path) -> None:
        """Writes the trace as JSON."""
        files.output(Path(path), files.as_json(self.as_json()))


def trace_of(program: str, labels: Labels | None, states: list[Array], machines: int) -> Trace:
    """The trace in the states (..., N, d) after every layer; without labels, of every memory position."""
    if labels is None:
        width = states[0].shape[-1] - 1
        labels = Labels(
            tuple(f"round {r}" for r in range(len(states))),
            tuple({f"memory[{place}]": place for place in range(width)} for _ in states),
        )
    rounds = [
        {name: np.asarray(state[..., :machines, column]) for name, column in columns.items()}
        for state, columns in zip(states, labels.columns, strict=True)
    ]
    return Trace(program, labels.rounds, tuple(rounds))
