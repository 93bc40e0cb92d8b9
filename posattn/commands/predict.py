"""``posattn predict``: a network's answer to one list, sequence or prompt, beside the true one."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Context, Option

from posattn.commands import console
from posattn.errors import UsageError, meant

if TYPE_CHECKING:
    from torch import Tensor

    from posattn.runs import AnyRun


def command(
    context: Context,
    run: str | None = console.RUN_IF_ANY,
    numbers: list[str] | None = Argument(
        None, metavar="LIST", help="Numbers: 3.2,1.5,-0.5 or 3.2 1.5 -0.5; for khop 2abcabd; for mixed tasks a prompt."
    ),
    member: int | None = Option(None, help="Which network of the run to ask (default: the first whose task it is)."),
    shorter: bool = Option(False, "--shorter", help="Ask about fewer numbers than it was trained on all the same."),
    trace: Path | None = Option(
        None, metavar="FILE.json", help="Of a compiled program: also write every variable at every machine and round."
    ),
    pretrained: str | None = console.PRETRAINED,
    arch: str | None = console.PRETRAINED_ARCH,
    task_file: Path | None = console.TASK_FILE,
    device: str | None = console.DEVICE,
) -> None:
    """Ask a trained network about a list: its answer beside the true one."""
    given = [each for each in (run, *(numbers or ())) if each is not None]
    for each in given:
        if each.startswith("--"):  # typer takes options that it does not know for numbers, since these may begin with -
            options = [name for option in context.command.params for name in option.opts]
            raise UsageError(f"there is no option {meant(each, options)}; see posattn predict --help.")
    run, given = (None, given) if pretrained is not None or not given else (given[0], given[1:])
    if not given:
        raise UsageError("a network is asked about a list; give RUN and LIST, or LIST and --pretrained TASK.")
    if pretrained is not None and member is not None:
        raise UsageError(f"member is {member}; --pretrained TASK is one network.")
    trained, where = console.networks(run, pretrained, arch, device)
    text = " ".join(given)
    member = _asked(trained, text) if member is None else member
    trained.check_member(member)
    if trace is not None and trained.config.trainable:
        raise UsageError(f"trace is {str(trace)!r}; only compiled programs have variables to trace.")
    which = f"network {member} of " if len(trained) > 1 and trained.config.trainable else ""
    title = f"{trained.members[member].task} by {which}{where}"
    if trained.reads_tokens:
        from posattn.runs import answer_tokens, tokens_of

        print((f"{title}\n" if which else "") + answer_tokens(trained, member, text))
        return _write_trace(trained, tokens_of(trained, member, text)[1], trace)
    x = trained.as_input(console.parse_list(text)).cpu()
    if not shorter and (reason := trained.too_short(len(x))):
        raise UsageError(f"{reason}; --shorter asks it all the same.")
    answer = trained.answer(x, member)
    shown = [(x, "g"), (answer, ".4f")]
    unknown = None
    try:
        truth = trained.truth(x, member)
        shown += [(truth, ".4f"), (answer - truth, "+.4f")]
    except UsageError as error:  # such as a task of one's own that is not registered here
        unknown = error
    columns = (
        [" ".join(f"{number:{form}}" for number in value.flatten().tolist()) for value in own]  # vectors, if compiled
        for own, form in shown
    )
    names = ("position", "input", "model", "true", "error")[: len(shown) + 1]
    console.print_table(title, names, zip(range(1, len(x) + 1), *columns, strict=True))
    if unknown is not None:
        print(f"Without the true answers: {unknown}")
    _write_trace(trained, x, trace)


def _asked(run: "AnyRun", text: str) -> int:
    """The first network whose task has such a text; the first of all if none has, or if lists of numbers are asked about."""
    from posattn.runs import tokens_of

    for member in range(len(run)) if run.reads_tokens else ():
        with suppress(UsageError):
            tokens_of(run, member, text)
            return member
    return 0


def _write_trace(run: "AnyRun", x: "Tensor", path: Path | None) -> None:
    if path is not None:
        from posattn.compiled_run import CompiledRun

        assert isinstance(run, CompiledRun)
        run.trace(x).save(path)
        print(f"Trace: {path}")
