"""posattn report: where it looks for results."""


def test_the_results_of_a_checkout_are_shown_where_there_are_none_of_ones_own(posattn_command, tmp_path):
    assert posattn_command("report")[2] == "posattn: store is 'out/store'; there is no such folder.\n"
    for place in ("results/store", "out/store"):  # the second has precedence
        (tmp_path / place / "rows").mkdir(parents=True)
        code, _, said = posattn_command("report")
        assert (code, said) == (2, f"posattn: store is '{place}', which holds no rows of the package's experiments.\n")
