"""What an experiment measured, for reading: pictures, Markdown and LaTeX tables, and one self-contained HTML page."""

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import matplotlib.pyplot as plt
import pandas as pd

from posattn import files
from posattn.errors import counted
from posattn.experiments.declaration import Experiment
from posattn.experiments.figures import Lines, rendered
from posattn.experiments.store import Cell, as_csv
from posattn.page_policy import policy
from posattn.tasks import task

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("posattn.experiments"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
Text = list[list[str]]  # a table: the header, then the rows


@dataclass(frozen=True)
class Shown:
    """Rows as a figure shows them; each part is made once, when it is asked for."""

    figure: Lines
    rows: pd.DataFrame

    @cached_property
    def medians(self) -> pd.DataFrame:
        return self.figure.medians(self.rows)

    @cached_property
    def tables(self) -> list[tuple[str, pd.DataFrame]]:
        """The medians of every panel, with its title."""
        return self.figure.tables(self.medians)

    def draw(self, stem: Path | None = None) -> list[bytes]:
        """The pictures as PNG. With a ``stem`` they are written there too, each with a PDF beside it."""
        pictures = []
        for end, figure in self.figure.draw(self.rows, self.medians).items():
            pictures.append(rendered(figure, "png"))
            if stem is not None:
                files.write(stem.with_name(f"{stem.name}{end}.png"), pictures[-1])
                files.write(stem.with_name(f"{stem.name}{end}.pdf"), rendered(figure, "pdf"))
            plt.close(figure)
        return pictures

    def write(self, stem: Path) -> list[bytes]:
        """Writes rows, pictures and the medians as Markdown and LaTeX; returns the pictures as PNG."""
        files.write(stem.with_name("rows.csv"), as_csv(self.rows))
        pictures = self.draw(stem)
        for end, form in ((".md", _markdown), (".tex", _latex)):
            files.write(stem.with_name(f"{stem.name}{end}"), self._text(form))
        return pictures

    def drawn_before(self, stem: Path) -> list[bytes]:
        """The pictures as ``write`` left them, if the medians beside them are these; else none. To draw takes far longer."""
        table = stem.with_name(f"{stem.name}.md")
        if not self.tables or not table.is_file() or files.read(table) != self._text(_markdown):
            return []
        own = re.compile(rf"{re.escape(stem.name)}(-\w+)?")
        found = (path for path in stem.parent.glob("*.png") if own.fullmatch(path.stem))
        return [files.read(path) for path in sorted(found, key=lambda path: path.stem)]

    def _text(self, form: Callable[[str, Text], str]) -> bytes:
        return "".join(form(title, _cells(table)) for title, table in self.tables).encode()


def page(title: str, sections: Sequence[dict[str, Any]], contents: bool = False, others: Iterable[str] = ()) -> bytes:
    """One HTML page of sections; with ``contents`` it begins with a list of them, and of ``others``, which have no section."""
    style = _TEMPLATES.get_template("report.css").render()
    given = {"title": title, "sections": sections, "contents": contents, "others": list(others)}
    given |= {"style": style, "policy": policy(style, images=True)}
    return _TEMPLATES.get_template("report.html").render(given).encode()


def section(
    experiment: Experiment,
    size: str,
    shown: Shown,
    pictures: Iterable[bytes],
    ensembles: list[dict[str, Any]],
    line: str = "",
) -> dict[str, Any]:
    """One experiment for :func:`page`; ``line`` is its entry in the contents."""
    numbered = re.fullmatch(r"(Figures?|Table|Appendix|Theorem) [\w.]+([-,] ?[\d.]+)*", experiment.reference)
    reference = experiment.reference[:1].upper() + experiment.reference[1:] + (" of the paper" if numbered else "")
    return {
        "name": experiment.name,
        "place": f"{experiment.name}-{size}",
        "line": line,
        "title": experiment.title,
        "reference": reference,
        "size": size,
        "fewer": fewer_tasks(experiment, size),
        "explained": shown.figure.explained(shown.rows, size),
        "pictures": [base64.b64encode(picture).decode() for picture in pictures],
        "medians": [(title, _cells(table)) for title, table in shown.tables],
        "published": _published(shown) if size == "paper" else None,
        "settings": _settings(experiment.cells(size), size, ensembles) if ensembles else None,
        "hardware": _hardware(ensembles),
    }


def fewer_tasks(experiment: Experiment, size: str) -> str:
    """A sentence on the tasks that an experiment has at paper scale alone; nothing where a size has all."""
    here, there = (dict.fromkeys(cell.member.task for cell in experiment.cells(own)) for own in (size, "paper"))
    others = [name for name in there if name not in here]
    return f"This scale has {', '.join(here)} alone; paper scale also has {', '.join(others)}." if here and others else ""


def _settings(cells: list[Cell], size: str, ensembles: list[dict[str, Any]]) -> Text:
    recipes, inputs = list(dict.fromkeys(cell.recipe for cell in cells)), task(cells[0].member.task).INPUTS
    first, shorter = recipes[0], " and shorter" if cells[0].variable_length else ""
    there = {key for about in ensembles for key in about["runs"]}
    each = Counter(cell.point for cell in cells if cell.key in there)
    samples = _listed(own.samples for own in recipes)
    return [
        ["setting", "value"],
        ["scale", size],
        ["tasks", _listed(cell.member.task for cell in cells)],
        [f"{inputs.removesuffix('s')} length n", _listed(cell.model.n for cell in cells) + shorter],
        ["runs", f"{each.total()} of {len(cells)}: {_listed(sorted(each.values()))} a point"],
        ["recipe", f"{first.name}: {first.schedule} schedule, learning rate {first.lr:g}"],
        ["training", f"{samples} {inputs}, {counted(first.epochs, 'epoch')}, batches of {first.batch}"],
        ["measured", ", ".join(f"{key} {value}" for key, value in cells[0].measure.key().items())],
    ]


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


_SIZES: dict[str, Callable[[Any], str]] = {
    "layers": lambda layers: counted(layers, "layer"), "encoding": "{} encodings".format, "width": "width {}".format,
}  # fmt: skip


def _hardware(ensembles: list[dict[str, Any]]) -> Text:
    rows = [["ensemble", "hardware", "precision", "seconds of training", "runs ended"]]
    for about in ensembles:
        spec, result, ended = about["spec"], about["result"], Counter(about["result"]["status"])
        model, inputs = spec["model"], task(spec["members"][0]["task"]).INPUTS
        sizes = [said(model[name]) for name, said in _SIZES.items() if name in model]
        extra = [name for name in ("tied", "relative") if model.get(name)]
        trained = f"{spec['recipe']['samples']} {inputs}"
        network = ", ".join([model.get("arch", "?"), f"n = {model['n']}", *sizes, *extra, trained])
        how = ", ".join(f"{ended[status]} {status}" for status in sorted(ended))
        rows.append([network, result["hardware"], spec["precision"], f"{result['seconds']:.0f}", how])
    return rows


def _published(shown: Shown) -> Text | None:
    """Our medians against the published ones as a table; None if there are none to compare with."""
    both = shown.figure.against_published(shown.medians)
    if both.empty:
        return None
    places = both[[*shown.figure.columns, "series", shown.figure.x]].astype(str)
    table = places.assign(
        ours=both["median"].map("{:.2e}".format),
        published=both["median_published"].map("{:.2e}".format),
        ratio=both["ratio"].map("{:.2f}".format),
        inside=both["inside"].map({True: "yes", False: "no"}).where(both["p10_published"].notna(), ""),
    )
    return [list(table), *table.to_numpy().tolist()]


def _cells(table: pd.DataFrame) -> Text:
    rows = [
        [x if isinstance(x, str) else f"{x:g}", *(value if isinstance(value, str) else f"{value:.2e}" for value in own)]
        for x, own in zip(table.index, table.to_numpy(), strict=True)
    ]
    return [[str(table.index.name), *map(str, table.columns)], *rows]


def _markdown(title: str, rows: Text) -> str:
    head, *body = ([_in_markdown(cell) for cell in row] for row in rows)
    rule = ["---"] * len(head)
    return f"### {_in_markdown(title)}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *body)) + "\n"


def _in_markdown(text: str) -> str:
    """Text as Markdown shows it; an underscore within a word means nothing there."""
    return re.sub(r"([\\`*\[\]<>&|#]|(?<!\w)_|_(?!\w))", r"\\\1", _one_line(text))


def _latex(title: str, rows: Text) -> str:
    head, *body = ([_one_line(cell) for cell in row] for row in rows)
    table = pd.DataFrame(body, columns=head).to_latex(index=False, escape=True, column_format="r" * len(head))
    return f"% {_one_line(title)}\n{table}\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())
