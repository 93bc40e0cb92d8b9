"""What verbs share: scales, lengths and lists in; tables and JSON out."""

import json
import math

import pandas as pd
import pytest

from posattn.commands.console import parse_lengths, parse_list, parse_scales, print_frame, print_json, print_table
from posattn.errors import UsageError


def test_scales_lengths_and_lists_are_read():
    assert parse_scales("1:4") == [1, 2, 3, 4] and parse_scales("1:10:3,0.5") == [1, 4, 7, 10, 0.5]
    assert parse_scales("2:2.3:0.1") == pytest.approx([2, 2.1, 2.2, 2.3])  # its end, in spite of rounding
    assert parse_lengths("16, 1024") == [16, 1024] and parse_list(" 1 ,-2.5,1e-1") == [1, -2.5, 0.1]
    for parse, wrong in (
        (parse_scales, "1:5000:1"),
        (parse_lengths, "4,0"),
        (parse_lengths, "²"),
        (parse_list, "1e39"),
    ):
        with pytest.raises(UsageError):
            parse(wrong)


def cells(capsys):
    lines = (line for line in capsys.readouterr().out.splitlines() if line[:1] in "┃│")
    return [line[2:-2].split(" ┃ " if line[0] == "┃" else " │ ") for line in lines]


def test_numbers_stand_right_and_text_left(capsys):
    frame = pd.DataFrame(
        {"task": ["min", "maxsub"], "mse": [0.12345, 1200.0], "ratio": [1.5, "-"], "fits": [True, False]}
    )
    print_frame("a title", frame)
    assert cells(capsys) == [
        ["task  ", "    mse", "ratio", "fits"],
        ["min   ", "  0.123", "  1.5", "yes "],
        ["maxsub", "1.2e+03", "    -", "NO  "],
    ]


def test_a_table_that_is_too_wide_is_turned(capsys):
    columns = ("scale", *(f"a-series-of-a-long-name-{k}" for k in range(8)))
    print_table("wide", columns, [(scale, *range(8)) for scale in (1, 10)])
    shown = cells(capsys)
    assert [cell.strip() for cell in shown[0]] == ["scale", "1", "10"]
    assert [row[0].strip() for row in shown[1:]] == list(columns[1:]) and len(shown[0]) == 3


def test_json_has_null_for_what_is_no_number(capsys):
    print_json({"gap": math.inf, "layers": ({"mse": math.nan}, {"mse": 0.1}), "name": "NaN"})
    assert json.loads(capsys.readouterr().out) == {"gap": None, "layers": [{"mse": None}, {"mse": 0.1}], "name": "NaN"}


@pytest.mark.parametrize("name", ["[/x]", "[red]hidden", ":cat:", "[bold", "a\\[b]"])
def test_names_are_printed_as_they_are(name, capsys):
    print_table(f"in {name}", [f"column {name}"], [[f"cell {name}"]])
    shown = capsys.readouterr().out
    assert all(f"{part} {name}" in shown for part in ("in", "column", "cell"))
