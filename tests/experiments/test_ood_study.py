"""Rows of Figure 35."""

import pytest

from posattn.experiments.ood_study import ood_probability_rows
from posattn.theory.ood import exact_probability


def test_every_n_and_scale_of_figure_35_has_its_four_values():
    table = ood_probability_rows("smoke")
    assert len(table) == 5 * 9 * 4
    own = table[(table["n"] == 4) & (table["scale"] == 3)].set_index("metric")["value"]
    assert own["exact"] == exact_probability(4, 3) <= own["bound"] and own["simulated"] == pytest.approx(
        0.103, abs=0.03
    )
