"""The environment of a record."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

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


def test_a_copy_inside_another_repository_has_no_commit(tmp_path):
    source = Path(trainact.__file__).parent
    shutil.copytree(source, tmp_path / "site" / "trainact", ignore=shutil.ignore_patterns("*.pyc"))
    (tmp_path / "README").write_text("another project")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "README"], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    code = (
        "from trainact.lab import environment as e; "
        "made = e.describe_environment(); print(e.__file__, made['commit'], made['clean'])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.split()[0].startswith(str(tmp_path))
    assert shown.split()[1:] == ["None", "None"]
