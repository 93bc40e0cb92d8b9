"""``posattn compile``: a parallel program to the weights of a positional Transformer."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from posattn.commands import console
from posattn.errors import UsageError, counted
from posattn.names import BOUND, MACHINES, ROUTES

if TYPE_CHECKING:
    from posattn.compiler import Compilation

_ASKED = {"none": "LIST", "letters": "SEQUENCE", "prompts": "PROMPT"}  # what ``predict`` takes, by a task's tokens


def command(
    name: str | None = Argument(
        None, metavar="PROGRAM", help="A program of the library (see --list), or one of your own: FILE.py:NAME."
    ),
    machines: int = Option(
        MACHINES, help="How many machines: one for each number of a list (of self-attention, tokens)."
    ),
    epsilon: float | None = Option(
        None, help="Softmax attention that moves no answer by more than this (default: hardmax, exact)."
    ),
    bound: float | None = Option(
        None, help=f"Largest absolute value of the real numbers it is given (default {BOUND:g})."
    ),
    route: str = Option(ROUTES[0], help="lean: a small layer for every round; theorem: the construction of the proof."),
    sparse: bool = Option(
        False, "--sparse", help="Indices in place of attention matrices, and only the MLPs' weights that are not 0."
    ),
    lengths: bool = Option(
        False, "--lengths", help="One network for lists of every length up to --machines, of a program that is a function."
    ),
    check: bool = Option(False, "--check", help="Compare all levels on random inputs."),
    samples: int = Option(20, help="How many inputs --check tries."),
    out: Path | None = Option(None, "--save", help="Folder for the network."),
    task_file: Path | None = console.TASK_FILE,
    show_list: bool = Option(False, "--list", help="List the programs."),
) -> None:
    """Compile a parallel program to the weights of a positional Transformer, and say how large it is.

    Example: posattn compile prefix-sum --machines 8 --check
    """
    from posattn.compiled_run import save
    from posattn.compiler import PROGRAMS, compile_program
    from posattn.tasks import task

    if show_list or name is None:
        rows = [(row.name, row.title, ", ".join(row.tasks)) for row in PROGRAMS.values()]
        return console.print_table("programs", ("program", "computes", "task"), rows)
    largest = BOUND if bound is None else bound
    compilation = compile_program(
        name, machines, epsilon=epsilon, bound=largest, route=route, sparse=sparse, lengths=lengths
    )
    sizes = compilation.sizes()
    sizes["network"] = [f"{size:,}" if isinstance(size, int) else size for size in sizes["network"]]
    console.print_frame(f"{name} on {counted(machines, 'machine')}", sizes)
    _remark(name, compilation, bound)
    if check:
        table = compilation.check(samples)
        assert compilation.source is not None  # what a name stands for is a function
        console.print_frame(f"against {compilation.source.standard}, {counted(samples, 'random input')}", table)
        if not table["agrees"].all():
            as_written = table["agrees"][table["level"].str.startswith("as written")]
            own = compilation.source.own and not as_written.all()
            reason = "the program does not give the answers that its truth states" if own else "this is a bug in the compiler"
            raise UsageError(f"the levels of {name} do not agree; {reason}.")
    if out is not None:
        save(compilation, out)
        path, of_file, _ = name.rpartition(".py:")
        file = task_file or (f"{path}.py" if of_file else None)  # which says what the answers should be
        more = "" if file is None else f" --task-file {file}"
        solved = compilation.source.tasks if compilation.source else ()
        asked = _ASKED[task(solved[0]).TOKENS if solved else "none"]
        print(f"Saved in {out}. Next: posattn predict {out} {asked}{more}")


def _remark(name: str, compilation: "Compilation", bound: float | None) -> None:
    """Says where the bound did not matter, how far softmax moves answers, and what fitted functions cost."""
    ends = compilation.model.config.bounds
    if bound is not None and all(bound not in (-lo, hi) for lo, hi in ends):
        own = ", and from ".join(f"{lo:g} to {hi:g}" for lo, hi in ends)
        print(f"The bound of {bound:g} does not matter: {name} takes numbers from {own}.")
    lowered = compilation.lowered
    if lowered.temperature is not None:
        print(f"Softmax at temperature {lowered.temperature:.3f}: no answer moves by more than {lowered.error:.3g}.")
    if lowered.misfit:
        most = f"{lowered.misfit:.3g}"
        print(f"Some functions are fitted: at the points tried no answer errs by more than {most} through them.")
