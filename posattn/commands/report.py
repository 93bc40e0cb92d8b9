"""``posattn report``: one page of what a store holds."""

from pathlib import Path

from typer import Option


def command(
    store: Path | None = Option(
        None, help="Folder of trained runs and their rows (default: out/store, or results/store if there is none)."
    ),
    out: Path = Option(Path("out/report.html"), help="The page to write."),
) -> None:
    """One self-contained page of the listed experiments that a store holds: figures, numbers, settings, hardware."""
    from posattn.experiments import Store, report_on
    from posattn.experiments.store import STORES, first_store

    held = store or first_store() or STORES[0]
    shown, others = report_on(Store(held), out)
    print("\n".join(shown))
    if others:
        print("Not on the page, with less than half of what their figures draw:\n" + "\n".join(others))
    print(f"Results: {held}\nPage: {out}")
