"""What the help of commands lists: the names in the tables of the package, and defaults. It needs no torch.

A test holds the names equal to those in the tables.
"""

TASKS = (
    *("sum", "min", "median", "sort", "maxsub", "sum-total", "min-total", "median-total", "maxsub-total"),
    *("khop", "mixed-min", "mixed-max", "mixed-sum", "mixed-multitask"),
)
ARCHITECTURES = (
    *("positional", "scale-exact", "standard", "positional-input", "misaligned", "input-regularized"),
    *("no-encoding", "rope-only", "standard-rope", "looped", "alibi", "randomized", "table"),
)
ENCODINGS = ("one-hot", "binary", "sinusoidal")
KNOWN_ENCODING = "encoding "  # before the name of one's own, where a run's folder has numbers to know it by
LAYOUTS = ("elements", "elements-shared", "characters")
FAMILIES = ("dilated", "butterfly", "selector")
RECIPES = ("paper", "tuned", "looped", "table", "prompt-table", "sorter", "selector")
PRECISIONS = ("fp32", "tf32", "fp16")

BOUND = 1e6  # the largest absolute value of a number that a compiled program takes
ROUTES = ("lean", "theorem")  # how a program is compiled: a small layer per round, or as Theorem 5.1 proves it
MACHINES = 8  # of a program
BY = ("attention", "effect")  # what an edge of a graph needs
