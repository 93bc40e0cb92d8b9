"""The programs by name. A module of functions joins the library by standing in ``MODULES``."""

from pathlib import Path

from posattn import files
from posattn.compiler import khop_programs, programs, prompt_programs
from posattn.compiler.function_programs import Program
from posattn.compiler.remarks import attention_program
from posattn.errors import UsageError, choice

MODULES = (programs, khop_programs, attention_program, prompt_programs)
PROGRAMS = {row.name: row for module in MODULES for row in vars(module).values() if isinstance(row, Program)}


def solving(task: str) -> list[Program]:
    """The library's programs that solve a task; the first is the one to take."""
    return [row for row in PROGRAMS.values() if task in row.tasks]


def program(name: str) -> Program:
    """The program of that name in the library, or one of your own: ``my.py:bfs`` is ``bfs`` in the file my.py, which is run."""
    path, colon, own = name.rpartition(".py:") if isinstance(name, str) else ("", "", "")
    if not colon and str(name).endswith(".py"):
        raise UsageError(f"program is {name!r}, a file; name a program in it, as in {name}:NAME.")
    if not colon:
        return PROGRAMS[choice("program", name, PROGRAMS)]
    executed = files.execute(Path(f"{path}.py"), "program")
    found = {key: each for key, each in executed.items() if isinstance(each, Program)}
    return found[choice(f"program of {path}.py", own, found)]
