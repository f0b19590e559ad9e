"""kill -9, a full disk and a read-only folder: the same command then gives the same records."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest

from lab_helpers import HERE
from robustness_record import THOROUGH, write_figures
from sudden_deaths import COMMANDS, EXPERIMENT, RUN, Campaign, read_results

pytestmark = pytest.mark.slow
KILLS = dict(zip(COMMANDS, (13, 13, 12, 12) if THOROUGH else (2, 2, 1, 1), strict=True))
DISKS = 6 if THOROUGH else 2


@pytest.fixture
def short_folder(monkeypatch):
    """A folder for Ray, whose sockets' names have an upper length."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield


@pytest.mark.usefixtures("short_folder")
@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_killed_command_ends_with_the_same_records(name, tmp_path):
    if "ray" in name and importlib.util.find_spec("ray") is None:
        pytest.skip("needs the extra 'ray'")
    campaign = Campaign(name, tmp_path, Random(name))
    found = campaign.kill(KILLS[name])
    write_figures("kills", [found])
    assert found["kills"] == KILLS[name]
    assert found["equal"] == found["runs"]


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    """Records of an undisturbed command, and a function that disturbs it."""
    probe = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("needs unshare and the right to mount a disk")
    folder = tmp_path_factory.mktemp("disks")
    (folder / "recipe.toml").write_text(EXPERIMENT)
    places = {"RECIPE": str(folder / "recipe.toml")}
    words = [places.get(word, word) for word in (*RUN, "--epochs", "3")]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    worker = ["unshare", "--map-root-user", "--mount", sys.executable, str(HERE / "disk_worker.py")]

    def disturb(cases: list[tuple[str, int, int]]) -> list[tuple[dict, dict]]:
        lines = [
            json.dumps([kind, free, [*words, "--jobs", str(jobs)]]) for kind, free, jobs in cases
        ]
        place = Path(tempfile.mkdtemp(dir=folder))
        done = subprocess.run(
            [*worker, str(place)], input="\n".join(lines), env=environment, text=True,
            stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        ends = [json.loads(line) for line in done.stdout.splitlines()]
        return [(end, read_results(place / f"disk-{i}-kept")) for i, end in enumerate(ends)]

    [(_, whole)] = disturb([("full", 32 * 2**20, 1)])
    return whole, disturb


def test_a_full_disk_is_one_message_and_loses_no_run(disks):
    whole, disturb = disks
    draw = Random(0)
    cases = [("full", 4096 * draw.randint(0, 20), 1 + at % 2) for at in range(DISKS)]
    ends = disturb(cases)
    for end, _ in ends:
        assert "Traceback" not in end["said"], end["said"]
        assert end["code"] == 0 or "the disk is full" in end["said"], end["said"]
        assert end["again"] == 0, end["then_said"]
    refused = sum(end["code"] != 0 for end, _ in ends)
    assert refused
    equal = sum(results == whole for _, results in ends)
    row = {"disk": "full", "cases": DISKS, "refused": refused, "equal": equal}
    write_figures("disks", [row])
    assert equal == DISKS


def test_a_read_only_folder_is_one_message(disks):
    whole, disturb = disks
    ends = disturb([("read-only", 0, 1), ("read-only", 0, 2)])
    for end, _ in ends:
        assert "Traceback" not in end["said"], end["said"]
        assert end["code"] in (1, 2), end["said"]
        assert "Read-only file system" in end["said"]
        assert end["again"] == 0, end["then_said"]
    equal = sum(results == whole for _, results in ends)
    row = {"disk": "read-only", "cases": len(ends), "refused": len(ends), "equal": equal}
    write_figures("disks", [row])
    assert equal == len(ends)
