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
