"""The command line's own part: its list of commands, and missing packages."""

import pytest

from trainact.lab.commands import cli


def test_a_missing_package_names_the_extra(monkeypatch, capsys):
    def refuse(module):
        raise ModuleNotFoundError(f"No module named 'no_such_package', in {module}", name="no_such")

    monkeypatch.setattr(cli.importlib, "import_module", refuse)
    assert cli.main(["bench"]) == 2
    assert "comes with the extra 'bench': pip install 'trainact[bench]'" in capsys.readouterr().err


def test_the_command_line_lists_its_commands(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["nonsense"])
