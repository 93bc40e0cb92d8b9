"""Fine-tuning of some parameters on numbers of another scale, all others frozen (Appendix D.1, Table 1)."""

from dataclasses import replace

import torch

from posattn.devices import current
from posattn.errors import UsageError, shown, whole
from posattn.tasks.sampling import factor
from posattn.training.estimate import require_room_to_train
from posattn.training.fit import trainer_for
from posattn.training.parameters import Parameters
from posattn.training.recipe import recipe
from posattn.training.run import Run, trained
from posattn.training.workers import Workers

VALUES = "attention.W_V.weight"


def fine_tune(run: Run, scale: float = 10.0, epochs: int = 20, lr: float | None = None, only: str = VALUES) -> Run:
    """Trains every member of ``run`` for ``epochs`` more, with a fresh Adam, on equally many lists of another scale.

    Only the parameters with ``only`` in their name change; the others are checked to be the same, bit for bit. The learning
    rate stays constant, by default at the initial one of the run's recipe.
    """
    run = trained(run)
    spec, before = run.spec, run.parameters.flat
    factor(scale)
    whole("epochs", epochs)
    if not isinstance(only, str) or not only:
        raise UsageError(f"only is {shown(only)}; it must be a part of the names of parameters.")
    frozen = ~run.parameters.mask(only).to(before.device)
    # The rate stays, and so does the sharpness of a looped network.
    plan = recipe(spec.recipe, schedule="plateau", epochs=epochs, patience=epochs, sharpen_from=0.0, sharpen_to=0.0)
    members = [replace(member, lr=recipe(spec.recipe, lr=lr).lr) for member in run.best_starts]
    require_room_to_train(spec.model, replace(plan, starts=1), len(members), spec.lengths, before.device)
    with Workers() as workers, current(before.device):
        trainer = trainer_for(spec, plan, members, before.device, workers, scale=scale, only=only)
        trainer.parameters = Parameters(spec.model, before.clone())
        for _ in trainer.steps():
            pass
    after = trainer.parameters
    if not torch.equal(after.flat[:, frozen], before[:, frozen]):
        raise RuntimeError("fine-tuning changed parameters that were to stay as they are.")
    status = [was if alive else "diverged" for was, alive in zip(run.status, trainer.alive.tolist(), strict=True)]
    about = {"fine-tuned": {"scale": scale, "epochs": epochs, "only": only}, "status": status}
    return Run(spec, after, run.result | about, run.history)
