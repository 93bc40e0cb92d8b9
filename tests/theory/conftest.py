"""The command within this process."""

import sys

import pytest

from posattn import cli


@pytest.fixture
def posattn_command(monkeypatch, capfd, tmp_path, unchecked):
    """Calls the command in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["posattn", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code or 0, *capfd.readouterr()

    return call
