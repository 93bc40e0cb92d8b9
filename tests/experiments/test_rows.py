"""Result rows of computations: the columns of every result, in their order."""

import pandas as pd

from posattn.experiments import EXPERIMENTS
from posattn.experiments.rows import result_rows
from posattn.runs import ROW_COLUMNS


def test_rows_have_the_columns_of_every_result_and_then_their_own():
    rows = result_rows([{"metric": "bound", "value": 1.0, "z": 2}, {"metric": "x", "value": 2.0, "domain": "id"}], n=4)
    assert list(rows) == [*ROW_COLUMNS, "z"] and rows["n"].tolist() == [4, 4]
    assert rows["domain"].tolist()[1] == "id" and set(rows["split"]) == {"test"} and rows["run"].isna().all()
    pd.testing.assert_frame_equal(result_rows(rows), rows)


def test_computed_experiments_have_them_too():
    rows = EXPERIMENTS["ood-probability"].source.rows("smoke")
    assert tuple(rows)[: len(ROW_COLUMNS)] == ROW_COLUMNS and rows["domain"].eq("ood").all()
