"""The environment of a record."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trainact
from trainact.lab.environment import describe_environment, describe_hardware


def test_the_environment_names_versions_hardware_and_commit():
    made = describe_environment("cpu")
    assert made["trainact"] == trainact.__version__
    assert made["packages"]["torch"] == torch.__version__
    assert made["threads"] == torch.get_num_threads()
    assert made["accelerator"] is None
    assert re.fullmatch(r"[0-9a-f]{40}", made["commit"] or "0" * 40)


def test_a_gpu_is_named_alone():
    assert describe_hardware({"accelerator": "Some GPU", "processor": "x"}) == "Some GPU"


SHOW = (
    "from trainact.lab import environment as e; "
    "made = e.describe_environment(); print(e.__file__, made['commit'], made['clean'])"
)


def copy_source(folder, *added):
    """Copy the package to a new repository, with these files added to its only commit."""
    source = Path(trainact.__file__).parent
    shutil.copytree(source, folder / "site" / "trainact", ignore=shutil.ignore_patterns("*.pyc"))
    (folder / "README").write_text("another project")
    (folder / "results").mkdir()
    (folder / "results" / "record").write_text("old")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", *added], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)


def show_environment(folder):
    """Return the file, the commit and the cleanness that a copy of the source tells."""
    return subprocess.run(
        [sys.executable, "-c", SHOW],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder / "site")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()


def test_a_copy_inside_another_repository_has_no_commit(tmp_path):
    copy_source(tmp_path, "README")
    file, *commit = show_environment(tmp_path)
    assert file.startswith(str(tmp_path))
    assert commit == ["None", "None"]


@pytest.mark.slow
def test_a_new_record_does_not_change_the_source(tmp_path):
    copy_source(tmp_path, "README", "site", "results")
    (tmp_path / "results" / "record").write_text("new")
    assert show_environment(tmp_path)[2] == "True"
    (tmp_path / "README").write_text("changed")
    assert show_environment(tmp_path)[2] == "False"
