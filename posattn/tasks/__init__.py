"""The tasks that models learn: how inputs are sampled, and the answer to each.

``task("sort").sample(1000, n=8, scale=3.0, seed=0)`` gives inputs and targets; ``TASKS`` is the table behind the names.
"""

from posattn.tasks.khop import KHOP
from posattn.tasks.mixed import MIXED, MixedTask
from posattn.tasks.numeric import FIVE_TASKS, TASKS, Task, register, task
from posattn.tasks.own import Data
from posattn.tasks.sampling import Seeds, sample_bounds, sample_lists
from posattn.tasks.shifts import SHIFTS, sample_shift
from posattn.tasks.token_task import TokenTask

for row in (KHOP, *MIXED):
    register(row)

__all__ = [
    "FIVE_TASKS", "SHIFTS", "TASKS", "Data", "MixedTask", "Seeds", "Task", "TokenTask", "register", "sample_bounds",
    "sample_lists", "sample_shift", "task",
]  # fmt: skip
