"""A compiler from parallel programs to the weights of a positional Transformer (Section 5, Appendices A and B).

compiling.py         the pipeline: one call per lemma
expressions.py       what a machine computes in a round
mpc.py, pcoc.py      the two models of computation, with interpreters
mpc_to_pcoc.py       Lemma B.1, over the network of benes.py
pcoc_to_weights.py   Lemmas B.2 and B.3; expressions_to_relu.py makes the MLPs, analysis.py the bounds
direct_rounds.py     rounds of MPC that need no routing
room.py              how large a network will be, and whether it fits into memory
selection.py         the same network without its large matrices
letters.py           the compiled khop on sequences of tokens
library.py           the programs by name
remarks/             what only shows a remark of the paper
"""

from posattn.compiler.analysis import Known
from posattn.compiler.compiling import Compilation, compile, compile_program
from posattn.compiler.expressions import (
    Expression,
    Memory,
    absolute,
    both,
    by_machine,
    either,
    equal,
    fitted,
    maximum,
    minimum,
    relu,
    select,
    sort_records,
)
from posattn.compiler.library import PROGRAMS, Program
from posattn.compiler.mpc import MPC, Machine, Message, Received
from posattn.compiler.pcoc import PCOC, Excess, Round

__all__ = [
    "MPC", "PCOC", "PROGRAMS", "Compilation", "Excess", "Expression", "Known", "Machine", "Memory", "Message",
    "Program", "Received", "Round", "absolute", "both", "by_machine", "compile", "compile_program", "either", "equal", "fitted",
    "maximum", "minimum", "relu", "select", "sort_records",
]  # fmt: skip
