"""``posattn evaluate``: networks in and out of distribution."""

from pathlib import Path

from typer import Option

from posattn.commands import console


def command(
    run: Path | None = console.RUN_IF_ANY,
    scales: str | None = Option(
        None,
        help="Scale factors: 1:10 (default; 1,2 for khop; 1,10 with --lengths), or 1,2,5; 1 is the training range.",
    ),
    lengths: str | None = Option(
        None, help="Numbers in the test lists, or tokens in the sequences, such as 16,1024: for networks of any length."
    ),
    domain: str | None = Option(
        None, help="Of token tasks, at every scale: id for words of training, ood for others (default: ood above scale 1)."
    ),
    samples: int = Option(1000, help="Test lists of each scale factor, and of each length."),
    each: bool = Option(False, "--each", help="A row for every network instead of the median over them."),
    csv: Path | None = Option(None, help="Also write every network's numbers to this CSV file."),
    pretrained: str | None = console.PRETRAINED,
    arch: str | None = console.PRETRAINED_ARCH,
    task_file: Path | None = console.TASK_FILE,
    device: str | None = console.DEVICE,
) -> None:
    """Test a run in and out of distribution: squared error and the paper's two accuracies at every scale factor.

    Token tasks have other columns: cross-entropy and accuracy by hop count (khop), squared and percentage error (mixed).
    """
    from posattn import files
    from posattn.metrics import OF_LENGTHS
    from posattn.tokens.vocabulary import ALPHABETS

    factors = None if scales is None else console.parse_scales(scales)
    trained, title = console.networks(run, pretrained, arch, device)
    if lengths is None:
        table = trained.evaluate(factors, samples, domain=domain)
    else:
        table = trained.evaluate_lengths(console.parse_lengths(lengths), factors, samples, domain=domain)
    metrics = trained.metrics if lengths is None or trained.reads_tokens else OF_LENGTHS
    if csv is not None:
        kept = table if domain is None else table.assign(domain=domain)
        files.output(csv, kept.to_csv(index=False).encode())
        print(f"Every network's numbers: {csv}")
    by = [name for name in ("n", "hops") if name in table]  # what, beside the scale, distinguishes rows
    keys = ["task", "scale", *by] if not each else ["member", "task", "seed", "scale", *by]
    shown = table if each else table.groupby(keys, sort=False).median(numeric_only=True).reset_index()
    tasks = len({member.task for member in trained.members})
    many = f", median of {len(trained) // tasks}{' per task' if tasks > 1 else ''}" if trained.config.trainable else ""
    kind = trained.kind + (", each network" if each else many)
    words = "" if domain is None else f", domain {domain}"
    console.print_frame(f"{title} ({kind}{words})", shown[[*keys, *metrics]])
    if "hops" in by:
        both = f"Up to scale 1 the letters are {ALPHABETS['id']}, and at every scale above it {ALPHABETS['ood']}."
        print(both if domain is None else f"The letters are {ALPHABETS[domain]}.")
    failed = [f"member {k} {status}" for k, status in enumerate(trained.status) if status != "ok"]
    if failed:
        print(f"Not all networks are trained: {', '.join(failed)}.")
