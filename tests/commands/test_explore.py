"""posattn explore: what it says of the page it writes."""

import re
from pathlib import Path

from posattn.explorer import results

PROGRAMS = Path(__file__).parents[2] / "docs" / "examples" / "programs.py"


def test_the_page_and_its_results_are_named(pair, posattn_command, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "held_in", lambda store: iter(()))
    code, shown, error = posattn_command("explore", pair, "--members", 1, "--out", "here/page.html")
    assert (code, error) == (0, "") and "Results: none, so published medians alone" in shown
    size = (tmp_path / "here/page.html").stat().st_size / 1e6
    assert f"Page: here/page.html ({size:.1f} MB, 2 networks); open it in a browser." in shown
    code, shown, error = posattn_command("explore", pair, "--out", "page.txt")
    assert (code, shown) == (2, "") and "must end in .html" in error and error.count("\n") == 1


def test_a_network_of_the_package_is_shown_alone_or_beside_runs(pair, posattn_command, monkeypatch):
    monkeypatch.setattr(results, "held_in", lambda store: iter(()))
    code, shown, _ = posattn_command("explore", "--pretrained", "sort", "--arch", "scale-exact")
    assert code == 0 and "2 networks" in shown  # with the program that sorts
    code, shown, _ = posattn_command("explore", pair, "--pretrained", "min", "--members", 1)
    assert code == 0 and "4 networks" in shown
    assert posattn_command("explore", "--arch", "looped")[0] == 2


def test_a_program_of_ones_own_is_shown_on_as_many_machines_as_asked_for(pair, posattn_command, monkeypatch):
    monkeypatch.setattr(results, "held_in", lambda store: iter(()))
    code, _, error = posattn_command("explore", f"{PROGRAMS}:bfs", "--machines", 3, "--out", "page.html")
    assert (code, error) == (0, "") and re.search(r'"machines":3\b', Path("page.html").read_text())
    code, _, error = posattn_command("explore", pair, "--machines", 3)
    assert code == 2 and error == "posattn: machines is 3; it is for programs of your own, FILE.py:NAME, and none is given.\n"
