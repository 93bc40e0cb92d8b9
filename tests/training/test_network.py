"""Networks for tasks: what is not given is the task's own, and looped networks take the family that solves it."""

import pytest

import posattn
from posattn.errors import UsageError
from posattn.training import network_for

# Fields of ModelConfig that are left at None do not have the type they say.
pytestmark = pytest.mark.usefixtures("unchecked")


def test_what_is_not_given_is_the_tasks_own():
    assert network_for("sum") == posattn.ModelConfig(8) and network_for("sum", n=4, width=None) == posattn.ModelConfig(
        4
    )
    khop = network_for("khop", arch="standard", embed=8)
    assert (khop.tokens, khop.causal, khop.n, khop.embed) == ("letters", True, 30, 8)


def test_a_looped_network_has_the_family_that_solves_the_task():
    assert network_for("sort", arch="looped", n=4).family == "butterfly"
    assert network_for("sum", arch="looped", n=4).family == "dilated"
    assert network_for("sort", arch="looped", n=4, family="dilated").family == "dilated"


@pytest.mark.parametrize("arch", ["scale-exact", "looped"])
def test_words_have_no_such_network(arch):
    with pytest.raises(UsageError, match=f"^arch is '{arch}'; mixed-min reads words, "):
        network_for("mixed-min", arch=arch)


def test_what_is_not_given_is_that_of_the_network_to_begin_with():
    before = posattn.ModelConfig(8, "standard", embed=16)
    assert network_for("sort", before) == before
    longer = network_for("sort", before, n=16, width=8)
    assert longer == posattn.ModelConfig(16, "standard", layers=before.layers, embed=16, width=8)
    with pytest.raises(UsageError, match=r"^arch is 'positional'; that of the run to begin with is 'standard'\.$"):
        network_for("sort", before, arch="positional")
