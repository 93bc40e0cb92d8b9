"""Experiments of your own, in a Python file that defines ``EXPERIMENT``."""

import runpy
from pathlib import Path

from posattn.errors import UsageError, choice, path_of
from posattn.experiments.catalog import EXPERIMENTS
from posattn.experiments.declaration import Experiment


def load_experiment(path: Path) -> Experiment:
    """The experiment that a file declares. The file is run, so it may define tasks, encodings and networks too."""
    if path.suffix != ".py":
        raise UsageError(f"the experiment's file is {str(path)!r}; it must be a Python file, which ends in .py.")
    if not path.is_file():
        raise UsageError(f"the experiment's file is {str(path)!r}, which does not exist.")
    try:
        found = runpy.run_path(str(path)).get("EXPERIMENT")
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path} could not be run: {type(error).__name__}: {reason}.") from error
    if not isinstance(found, Experiment):
        raise UsageError(f"{path} does not define EXPERIMENT; it must be a posattn.experiments.Experiment.")
    if found.name in EXPERIMENTS:
        raise UsageError(f"name in {path} is {found.name!r}, an experiment of the package; it must be another.")
    found.cells("paper")  # every network of the grid can be configured
    return found


def experiments_named(name: str) -> list[Experiment]:
    """The experiments that a name stands for: one of the catalogue, ``all`` of it, or that of a Python file."""
    if path_of("experiment", name).suffix:
        return [load_experiment(Path(name))]
    if name == "all":
        return list(EXPERIMENTS.values())
    return [EXPERIMENTS[choice("experiment", name, [*EXPERIMENTS, "all"])]]
