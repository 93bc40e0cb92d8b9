"""Result rows that come from no run of the store: the columns of every result, then those that only one experiment has."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from posattn import runs


def result_rows(values: Iterable[Mapping[str, Any]] | pd.DataFrame, **settings: Any) -> pd.DataFrame:
    """Rows from ``values``, each with at least a metric and a value; ``settings`` hold for all of them.

    Columns that neither fills are empty, except that split is test, domain is ood and status is ok by default.
    """
    rows = values if isinstance(values, pd.DataFrame) else pd.DataFrame(list(values))
    return runs.result_rows(rows, {"task": "", "arch": "", "split": "test", "domain": "ood", "status": "ok"} | settings)
