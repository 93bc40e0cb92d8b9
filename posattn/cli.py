"""The ``posattn`` command: the list of its verbs, and the entry point.

Bad input ends in one sentence on standard error and exit code 2.
"""

import io
import os
import sys
import warnings
from importlib import import_module
from typing import Any

import typer

from posattn.errors import UsageError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train, test and reproduce positional Transformers: attention that depends on positions alone.",
)


def main() -> None:
    """The entry point: a UsageError becomes a sentence and exit code 2."""
    _prepare_streams()
    warnings.showwarning = lambda message, *_args, **_kwargs: print(f"posattn: {message}", file=sys.stderr)
    try:
        code = app(standalone_mode=False) or 0
        sys.stdout.flush()  # what cannot be written is told here, and not after the end
        raise SystemExit(code)
    except UsageError as error:
        message = str(error)
    except BrokenPipeError:  # whoever read the output wants no more of it, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(1) from None
    except OSError as error:
        message = f"{error.filename or 'a file'}: {error.strerror or error}."
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":  # what typer makes of Ctrl-C
            print("posattn: stopped.", file=sys.stderr)
            raise SystemExit(130) from None
        from posattn.devices import out_of_memory

        if out_of_memory(error):
            message = "the memory ran out; take fewer or smaller networks, lists or samples."
        # What the command line itself got wrong: typer's own errors, whose classes differ between its versions.
        elif hasattr(error, "format_message"):
            message = _said(error)
        else:
            raise
    if message:  # empty where typer showed the help, for lack of arguments
        print(f"posattn: {message}", file=sys.stderr)
    raise SystemExit(2)


def _said(error: Any) -> str:
    """What the command line got wrong. Newer versions of typer do not name the value that is no number."""
    if hasattr(error.__cause__, "errors"):
        (found, *_) = error.__cause__.errors()
        wanted = {"int": "a whole number", "float": "a number"}.get(found["type"].split("_")[0])
        if wanted is not None:
            return f"{error.param.name} is {found['input']!r}; it must be {wanted}."
    return str(error.format_message())


def _prepare_streams() -> None:
    """Lets everything be printed: a closed stream takes it and drops it, and characters it lacks are written as codes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _show_version(wanted: bool) -> None:
    if wanted:
        import torch

        from posattn import __version__

        print(f"posattn {__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


# Help lists the verbs in this order: what most people want first, the theory last.
VERBS = ["train", "evaluate", "predict", "export", "reproduce", "report", "explore", "compile", "graph", "bound"]
VERBS += ["certify", "ood-probability"]

for verb in VERBS:
    command = import_module(f"posattn.commands.{verb.replace('-', '_')}").command
    app.command(verb, context_settings={"ignore_unknown_options": verb == "predict"})(command)  # a list may be -1,2
