"""The ``posattn`` command: the list of its verbs, and the entry point.

Bad input ends in one sentence on standard error and exit code 2.
"""

import sys
import warnings
from typing import Annotated

import torch
import typer

from posattn.commands.bound import bound
from posattn.commands.certify import certify
from posattn.commands.compile import compile
from posattn.commands.evaluate import evaluate
from posattn.commands.explore import explore
from posattn.commands.export import export
from posattn.commands.gpt2 import gpt2
from posattn.commands.graph import graph
from posattn.commands.ood_probability import ood_probability
from posattn.commands.predict import predict
from posattn.commands.report import report
from posattn.commands.reproduce import reproduce
from posattn.commands.train import train
from posattn.errors import UsageError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train, test and reproduce positional Transformers: attention that depends on positions alone.",
)


def main() -> None:
    """The entry point: a UsageError becomes a sentence and exit code 2."""
    warnings.showwarning = lambda message, *_args, **_kwargs: print(f"posattn: {message}", file=sys.stderr)
    try:
        raise SystemExit(app(standalone_mode=False) or 0)
    except UsageError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename or 'a file'}: {error.strerror or error}."
    except KeyboardInterrupt:
        raise SystemExit(_stopped()) from None
    except Exception as error:
        if type(error).__name__ == "Abort":  # what typer makes of Ctrl-C
            raise SystemExit(_stopped()) from None
        # What the command line itself got wrong: typer's own errors, whose classes differ between its versions.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
    if message:  # none where help was shown for want of arguments
        print(f"posattn: {message}", file=sys.stderr)
    raise SystemExit(2)


def _stopped() -> int:
    print("posattn: stopped.", file=sys.stderr)
    return 130


def _show_version(wanted: bool) -> None:
    if wanted:
        from posattn import __version__

        print(f"posattn {__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


# Help lists the verbs in this order: what most people want first, the theory last.
for _verb in (
    *(train, evaluate, predict, export, reproduce, report, explore),
    *(compile, graph, gpt2, bound, certify, ood_probability),
):
    # A list to predict may begin with a minus sign.
    app.command(context_settings={"ignore_unknown_options": _verb is predict})(_verb)
