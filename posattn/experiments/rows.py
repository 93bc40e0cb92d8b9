"""Result rows: those that come from no run of the store, with the columns of every result and of one experiment; and files."""

import zlib
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from posattn import files, runs


def result_rows(values: Iterable[Mapping[str, Any]] | pd.DataFrame, **settings: Any) -> pd.DataFrame:
    """Rows from ``values``, each with at least a metric and a value; ``settings`` hold for all of them.

    Columns that neither fills are empty, except that split is test, domain is ood and status is ok by default.
    """
    rows = values if isinstance(values, pd.DataFrame) else pd.DataFrame(list(values))
    return runs.result_rows(rows, {"task": "", "arch": "", "split": "test", "domain": "ood", "status": "ok"} | settings)


def as_csv(rows: pd.DataFrame) -> bytes:
    """The content of a file of rows."""
    return rows.to_csv(index=False, na_rep="nan").encode()


def read_rows(path: Path, content: bytes) -> pd.DataFrame:
    """The rows in the ``content`` of the file ``path``, which ends in .csv or, of runs of the store, in .csv.gz."""
    stored = path.suffix == ".gz"
    how: dict[str, Any] = {"compression": "gzip", "dtype": {"run": str}} if stored else {}  # a run may look like a number
    try:
        rows = pd.read_csv(BytesIO(content), **how)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise files.Damaged(f"{path} is damaged: it is not a table.") from error
    if stored and not {"run", "metric", "value"} <= set(rows):
        raise files.Damaged(f"{path} is damaged: it is not a table of results.")
    return rows
