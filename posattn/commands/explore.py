"""``posattn explore``: one page on which networks run."""

from pathlib import Path

from typer import Argument, Option

from posattn.commands import console
from posattn.errors import counted
from posattn.names import MACHINES


def command(
    runs: list[Path] | None = Argument(
        None, metavar="[RUN]...", help="Folders of runs or compiled programs, or FILE.py:NAME (default: the package's)."
    ),
    out: Path = Option(Path("explorer.html"), help="The page to write."),
    store: Path | None = Option(None, help="Folder of result rows to draw (default: out/store or results/store)."),
    pretrained: str | None = console.PRETRAINED,
    arch: str | None = console.PRETRAINED_ARCH,
    task_file: Path | None = console.TASK_FILE,
    members: int | None = Option(None, help="How many networks of each run (default: as many as the page holds)."),
    machines: int | None = Option(
        None, help=f"Machines of FILE.py:NAME, one for each number of a list (default {MACHINES})."
    ),
) -> None:
    """Write one self-contained page on which networks answer, attend and step through programs, with the stored results.

    Example: posattn explore --out explorer.html
    """
    from posattn.explorer import explore
    from posattn.runs import AnyRun

    shown: list[str | Path | AnyRun] = [*(runs or ())]
    if pretrained is not None or arch is not None:
        shown.append(console.networks(None, pretrained, arch, "cpu")[0])
    content, found = explore(out, shown, store, members, machines)
    if content.note:
        print(content.note)
    print(f"Results: {'none, so published medians alone' if found is None else found}")
    size = out.stat().st_size / 1e6
    count = len(content.networks)
    print(f"Page: {out} ({size:.1f} MB, {counted(count, 'network')}); open it in a browser.")
