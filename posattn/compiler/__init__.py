"""A compiler from parallel programs to the weights of a positional Transformer (Section 5, Appendices A and B).

compiling.py         the pipeline: one call per lemma
function_programs.py programs as plain Python functions (@posattn.program), which front_end.py executes once
program_numbers.py   what such a function computes with, and program_messages.py what it sends and receives
interpreter.py       such a program as it is written; front_end_to_pcoc.py makes it PCOC, front_end_to_mpc.py MPC
traces.py            the program's variables in the states of its network
expressions.py       what a machine computes in a round
mpc.py, pcoc.py      the two models of computation, with interpreters
mpc_to_pcoc.py       Lemma B.1, over the network of benes.py
pcoc_to_weights.py   Lemmas B.2 and B.3; expressions_to_relu.py makes the MLPs, analysis.py the bounds
machine_memory.py    the network's input, and the codes of broken rules
compiled_model.py    the network, with its size
selection.py         the same network without its large matrices
program_network.py   the same network with weights that training may change
library.py           the library's programs by name: those of programs.py, and
khop_programs.py     those of k-hop, and the compiled ones on sequences of tokens
prompt_programs.py   that of mixed-type prompts, and the compiled one on prompts
looped_programs.py   programs as looped networks
remarks/             what only shows a remark of the paper
"""

from posattn.compiler.analysis import Known
from posattn.compiler.compiling import Compilation, compile, compile_program
from posattn.compiler.expressions import Expression, Memory
from posattn.compiler.function_programs import Program, program
from posattn.compiler.library import PROGRAMS
from posattn.compiler.pcoc import PCOC, Excess, Round
from posattn.compiler.program_messages import send
from posattn.compiler.program_numbers import (
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
    sort_records,
    times,
    within,
)

__all__ = [
    "PCOC", "PROGRAMS", "Bit", "Compilation", "Excess", "Expression", "Known", "Memory", "N", "Program", "Real", "Round",
    "Whole", "absolute", "both", "by_machine", "clamp", "compile", "compile_program", "either", "equal", "fitted", "greater",
    "lookup", "maximum", "minimum", "program", "relu", "select", "send", "sort_records", "times", "within",
]  # fmt: skip
