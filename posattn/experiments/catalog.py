"""The experiments by name. A figure's numbers live here and nowhere else."""

from posattn.experiments.declaration import Experiment, Plan
from posattn.training.recipe import recipe

FIVE_TASKS = ("sum", "min", "median", "sort", "maxsub")
THREE_ARCHS = ("positional", "scale-exact", "standard")

# Small batches: at this budget the number of steps matters more than how exact each gradient is.
_SMOKE = Plan(
    ("sum",), THREE_ARCHS, 2, recipe("tuned", samples=200, epochs=3, batch=100), factors=(1, 3), test_samples=50
)
_QUICK = Plan(("sum",), THREE_ARCHS, 3, recipe("tuned", samples=10_000, epochs=50, batch=250))

EXPERIMENTS: dict[str, Experiment] = {
    row.name: row
    for row in (
        Experiment(
            "fix-scale",
            "Figure 4",
            "error against the scale of the numbers",
            {"smoke": _SMOKE, "quick": _QUICK, "paper": Plan(FIVE_TASKS, THREE_ARCHS, 10, recipe("paper"))},
        ),
        Experiment(
            "fix-scale-tuned",
            "Figure 4, tuned recipe",
            "error against the scale of the numbers",
            {"smoke": _SMOKE, "quick": _QUICK, "paper": Plan(FIVE_TASKS, THREE_ARCHS, 10, recipe("tuned"))},
        ),
    )
}
