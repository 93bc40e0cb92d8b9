"""``posattn predict``: a network's answer to one list, sequence or prompt, beside the true one."""

from pathlib import Path

from torch import Tensor
from typer import Argument, Option

from posattn.commands import console
from posattn.errors import UsageError
from posattn.runs import answer_tokens


def command(
    run: str | None = console.RUN_IF_ANY,
    numbers: str | None = Argument(
        None,
        metavar="LIST",
        help="Numbers with commas between them: 3.2,1.5,-0.5,2. For khop a sequence: 2abcabd; for mixed tasks a prompt.",
    ),
    member: int | None = Option(None, help="Which network of the run to ask (default 0)."),
    pretrained: str | None = console.PRETRAINED,
    arch: str | None = console.PRETRAINED_ARCH,
    task_file: Path | None = console.TASK_FILE,
    device: str | None = console.DEVICE,
) -> None:
    """Ask a trained network about a list: its answer beside the true one."""
    if pretrained is not None and numbers is None:
        run, numbers = None, run
    if numbers is None or (run is None) == (pretrained is None):
        raise UsageError("a network is asked about a list; give RUN and LIST, or LIST and --pretrained TASK.")
    if pretrained is not None and member is not None:
        raise UsageError(f"member is {member}; --pretrained TASK is one network.")
    trained, where = console.networks(run, pretrained, arch, device)
    member = 0 if member is None else member
    if trained.reads_tokens:
        print(answer_tokens(trained, member, numbers))
        return
    x = trained.as_input(console.parse_list(numbers)).cpu()
    answer = trained.answer(x, member)
    shown: list[tuple[Tensor, str]] = [(x, "g"), (answer, ".4f")]
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
    title = f"{trained.members[member].task} by {where}"
    names = ("position", "input", "model", "true", "error")[: len(shown) + 1]
    console.print_table(title, names, zip(range(1, len(x) + 1), *columns, strict=True))
    if unknown is not None:
        print(f"Without the true answers: {unknown}")
