"""posattn explore: what it says of the page it writes."""

from posattn.explorer import results


def test_the_page_and_its_results_are_named(pair, posattn_command, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "reportable", lambda store: iter(()))
    code, shown, error = posattn_command("explore", pair, "--members", 1, "--out", "here/page.html")
    assert (code, error) == (0, "") and "Results: none, so published medians alone" in shown
    size = (tmp_path / "here/page.html").stat().st_size / 1e6
    assert f"Page: here/page.html ({size:.1f} MB, 2 networks); open it in a browser." in shown
    code, shown, error = posattn_command("explore", pair, "--out", "page.txt")
    assert (code, shown) == (2, "") and "must end in .html" in error and error.count("\n") == 1


def test_a_network_of_the_package_is_shown_alone_or_beside_runs(pair, posattn_command, monkeypatch):
    monkeypatch.setattr(results, "reportable", lambda store: iter(()))
    code, shown, _ = posattn_command("explore", "--pretrained", "sort", "--arch", "scale-exact")
    assert code == 0 and "2 networks" in shown  # with the program that sorts
    code, shown, _ = posattn_command("explore", pair, "--pretrained", "min", "--members", 1)
    assert code == 0 and "4 networks" in shown
    assert posattn_command("explore", "--arch", "looped")[0] == 2
