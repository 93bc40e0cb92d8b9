"""Runs of a grid: what names them."""

from dataclasses import replace

from trials import small

from posattn.experiments import Scales


def test_a_run_is_known_by_what_determines_its_numbers_and_a_point_by_all_but_the_seed():
    first, second = small().cells("paper")
    assert first.key != second.key and first.point == second.point == first.key
    assert replace(first, label="other", measure=Scales((7,))).key == first.key
    assert replace(first, recipe=replace(first.recipe, samples=41)).point != first.point
    assert first.spec("tf32").identity(0, precision=False) == first.key
