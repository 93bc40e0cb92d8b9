"""The names that ``import posattn`` gives: imported when the first is asked for, whichever module came before."""

import subprocess
import sys

import pytest

import posattn


def test_importing_the_package_imports_no_torch_and_its_names_do():
    code = "import sys, posattn; assert 'torch' not in sys.modules; "
    code += "from posattn import Transformer; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there_and_listed():
    assert set(posattn.__all__) <= set(dir(posattn)) and all(hasattr(posattn, name) for name in posattn.__all__)
    with pytest.raises(AttributeError, match="module 'posattn' has no attribute 'trian'"):
        _ = posattn.trian


MODULES = [
    "from posattn.model import ModelConfig; assert ModelConfig(8, 'looped').kind == 'looped'",
    "from posattn.network import from_dict; from_dict({'kind': 'graph', 'n': 4, 'arch': 'gcn'})",
    "from posattn.runs import load; assert len(load('PAIR')) == 2",
    "import posattn.pretrained; import posattn; assert posattn.pretrained('sort').config.n == 8",
    "import posattn; posattn.train; import posattn.pretrained as own; assert own is posattn.pretrained and own.pretrained_run",
    "import posattn; assert posattn.compiler.PROGRAMS and posattn.experiments.EXPERIMENTS",
    "from posattn import *; assert callable(pretrained) and Run",
]

# A process for each, which has the package still to import, but not PyTorch.
EACH = """
import os, sys, pandas, torch
for code in sys.argv[1:]:
    assert not any(name.split(".")[0] == "posattn" for name in sys.modules)
    child = os.fork()
    if child == 0:
        exec(code, {})
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_module_imported_by_itself_knows_all_kinds(pair):
    codes = [code.replace("PAIR", str(pair)) for code in MODULES]
    done = subprocess.run([sys.executable, "-c", EACH, *codes], capture_output=True, text=True)
    failed = [code for code, ended in zip(codes, done.stdout.split(), strict=True) if ended != "0"]
    assert failed == [], done.stderr
