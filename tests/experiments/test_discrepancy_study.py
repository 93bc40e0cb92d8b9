"""Appendix G: a network that learns the minimum of integers, beside the bound on its error."""

from posattn.experiments.discrepancy_study import discrepancy_rows, learn_minimum
from posattn.theory.discrepancy import sample_integers


def test_a_network_of_the_class_learns_the_minimum_of_integers():
    """Four hidden units a layer, W_V = W_O = I: it gets below the discrepancy, and more training helps."""
    train, test = sample_integers(300, 4, 3), sample_integers(500, 4, 4, split="test")
    errors = []
    for steps in (1, 300):
        learned = learn_minimum(train, steps, restarts=8)
        assert learned.W_1.shape == (1, 2, 3, 4)
        errors.append(float((learned(test) - test.amin(dim=1)).abs().mean()))
    assert errors[1] < 0.3 * errors[0] and errors[1] < 0.2


def test_the_restart_that_is_kept_fits_best():
    train = sample_integers(100, 4, 3)
    alone = learn_minimum(train, 30, restarts=1)(train)
    best = learn_minimum(train, 30, restarts=12)(train)
    assert (best - train.amin(dim=1)).abs().mean() < (alone - train.amin(dim=1)).abs().mean()


def test_the_bound_of_appendix_g_is_above_its_discrepancy_whatever_m_is():
    wide = discrepancy_rows("smoke").pivot(index=["samples", "z"], columns="series", values="value")
    assert (wide["empirical discrepancy"] >= wide["the same of min and max alone"]).all()
    assert (wide["bound without its O(1/√m)"] > wide["empirical discrepancy"]).all()
    assert (wide["bound without its O(1/√m)"] > wide["test error of the trained network"]).all()
