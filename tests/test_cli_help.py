"""Help starts at once: no verb imports torch to say what it does, and the names it lists are those of the tables."""

import subprocess
import sys

import posattn
from posattn import names
from posattn.encodings import ENCODINGS
from posattn.looped import FAMILIES
from posattn.model import ARCHITECTURES
from posattn.network import KINDS_BY_ARCH
from posattn.tasks import TASKS
from posattn.tasks.layouts import LAYOUTS
from posattn.training import RECIPES

HELP = """
import sys
import posattn.cli
for verb in [None, *posattn.cli.VERBS]:
    sys.argv = ["posattn", *([] if verb is None else [verb]), "--help"]
    try:
        posattn.cli.main()
    except SystemExit as left:
        assert left.code == 0, sys.argv
print(*{"torch", "numpy", "pandas", "matplotlib"} & set(sys.modules), file=sys.stderr)
"""


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_help_imports_neither_torch_nor_anything_else_that_is_slow():
    done = python(HELP)
    assert done.stderr.strip() == "" and done.stdout.count("Usage:") == 1 + len(posattn.cli.VERBS)


def test_the_names_that_help_lists_are_those_of_the_tables():
    assert tuple(TASKS)[: len(names.TASKS)] == names.TASKS  # tests may have registered more
    assert (*ARCHITECTURES, *KINDS_BY_ARCH) == names.ARCHITECTURES
    assert tuple(map(tuple, (ENCODINGS, FAMILIES, LAYOUTS))) == (names.ENCODINGS, names.FAMILIES, names.LAYOUTS)
    assert tuple(RECIPES) == names.RECIPES
    done = python("from posattn import names; from posattn.tasks import TASKS; assert names.TASKS == tuple(TASKS)")
    assert done.stderr == ""
