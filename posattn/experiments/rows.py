"""Result rows of what is no run of the store: the columns of every result, then those that only one experiment has."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from posattn.training.run import ROW_COLUMNS


def result_rows(values: Iterable[Mapping[str, Any]] | pd.DataFrame, **settings: Any) -> pd.DataFrame:
    """Rows from ``values``, each with at least a metric and a value; ``settings`` hold for all, and the rest is empty.

    Rows are of split test and domain ood, and their status is ok, unless they say otherwise.
    """
    rows = values if isinstance(values, pd.DataFrame) else pd.DataFrame(list(values))
    given = {"task": "", "arch": "", "split": "test", "domain": "ood", "status": "ok"} | settings
    rows = rows.assign(**{name: value for name, value in given.items() if name not in rows})
    return rows.reindex(columns=[*ROW_COLUMNS, *(column for column in rows if column not in ROW_COLUMNS)])
