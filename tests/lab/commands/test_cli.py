"""The command line's own part: its list of commands, missing packages, and answers at once."""

import subprocess
import sys

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


LARGE = ("torch", "numpy", "scipy", "matplotlib", "accelerate", "datasets", "pyarrow", "PIL")
USAGE = [
    *([name, "--help"] for name in cli.COMMANDS),
    ["--help"],
    ["--version"],
    ["nonsense"],
    ["ls"],
    ["ls", "nonsense"],
    ["show", "nonsense"],
    ["run"],
    ["run", "nonsense"],
    ["run", "photos", "--arms", "nonsense"],
    ["run", "photos", "--optimizer.lrr", "1"],
    ["run", "photos", "--seeds", "x"],
    ["run", "photos", "--lam", "1"],
    ["run", "photos", "--ray-address", "x"],
    ["run", "photos", "--shard", "3/2"],
    ["run", "photos", "--full-size"],
    ["compare", "--epochs", "x"],
    ["compare", "--lam", "-1"],
    ["compare", "optimizer.lr"],
    ["compare", "--optimizer", "nonsense"],
    ["tune", "nonsense"],
    ["tune", "photos"],
    ["data", "nonsense"],
    ["data", "cifar10", "--images", "-1"],
    ["collect"],
    ["report"],
    ["figure1", "--seeds", "x"],
    ["figure1", "data.nonsense=1"],
    ["bench", "--sections", "x"],
    ["bench", "--zoo", "--calibrate"],
    ["inspect", "resnet18", "--batch", "0"],
]


def test_help_and_messages_about_usage_import_no_large_package():
    code = f"""
import sys
from trainact.lab.commands import cli
for words in {USAGE!r}:
    try:
        code = cli.main(words)
    except SystemExit as error:
        code = error.code
    found = [name for name in {LARGE!r} if name in sys.modules]
    assert not found, (words, found)
    assert code == (0 if words[-1] in ("--help", "--version", "ls") else 2), (words, code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_missing_transformers_names_its_extra(monkeypatch, capsys):
    def refuse(module):
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")

    monkeypatch.setattr(cli.importlib, "import_module", refuse)
    assert cli.main(["inspect", "hf:vit"]) == 2
    assert "pip install 'trainact[all]'" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "steps"), [(0, ["leave", "flush", "end"]), (1, [])])
def test_a_command_that_ends_well_leaves_the_other_ranks(monkeypatch, code, steps):
    import torch.distributed as dist

    found = []
    monkeypatch.setattr(cli, "main", lambda: code)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: found.append("leave"))
    monkeypatch.setattr(sys.stdout, "flush", lambda: found.append("flush"))
    monkeypatch.setattr(cli.os, "_exit", lambda code: found.append("end"))
    with pytest.raises(SystemExit, match=str(code)):
        cli.start()
    assert found == steps
