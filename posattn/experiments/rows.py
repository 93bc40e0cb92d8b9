"""Result rows of what is no run of the store: the columns of every result, then those that only one experiment has."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from posattn import runs


def result_rows(values: Iterable[Mapping[str, Any]] | pd.DataFrame, **settings: Any) -> pd.DataFrame:
    """Rows from ``values``, each with at least a metric and a value; ``settings`` hold for all, and the rest is empty.

    Rows are of split test and domain ood, and their status is ok, unless they say otherwise.
    """
    rows = values if isinstance(values, pd.DataFrame) else pd.DataFrame(list(values))
    return runs.result_rows(rows, {"task": "", "arch": "", "split": "test", "domain": "ood", "status": "ok"} | settings)
