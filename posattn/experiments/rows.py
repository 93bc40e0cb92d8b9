"""Result rows: those that come from no run of the store, with the columns of every result and of one experiment; and files."""

import gzip
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


def read_rows(path: Path, content: bytes) -> pd.DataFrame:
    """The rows in the ``content`` of the file ``path``, which ends in .csv or .csv.gz."""
    try:
        if path.suffix == ".gz":  # the runs of the store, whose names may look like numbers
            rows = pd.read_csv(BytesIO(gzip.decompress(content)), dtype={"run": str})
        else:
            rows = pd.read_csv(BytesIO(content))
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise files.Damaged(f"{path} is damaged: it is not a table.") from error
    if path.suffix == ".gz" and not {"run", "metric", "value"} <= set(rows):
        raise files.Damaged(f"{path} is damaged: it is not a table of results.")
    return rows
