"""A compiler from parallel programs to the weights of a positional Transformer (Section 5, Appendices A and B).

compiling.py         the pipeline: one call per lemma
front_end.py         programs as plain Python functions; function_programs.py runs and describes them
front_end_to_pcoc.py their rounds and variables as rounds and memory of PCOC
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
from posattn.compiler.expressions import Expression, Memory
from posattn.compiler.front_end import (
    Bit,
    N,
    Real,
    Whole,
    absolute,
    both,
    by_machine,
    clamp,
    either,
    equal,
    fitted,
    greater,
    lookup,
    maximum,
    minimum,
    relu,
    select,
    send,
    sort_records,
    times,
    within,
)
from posattn.compiler.function_programs import FunctionProgram, program
from posattn.compiler.library import PROGRAMS, Program
from posattn.compiler.mpc import MPC, Machine, Message, Received
from posattn.compiler.pcoc import PCOC, Excess, Round

__all__ = [
    "MPC", "PCOC", "PROGRAMS", "Bit", "Compilation", "Excess", "Expression", "FunctionProgram", "Known", "Machine", "Memory",
    "Message", "N", "Program", "Real", "Received", "Round", "Whole", "absolute", "both", "by_machine", "clamp", "compile",
    "compile_program", "either", "equal", "fitted", "greater", "lookup", "maximum", "minimum", "program", "relu", "select",
    "send", "sort_records", "times", "within",
]  # fmt: skip
