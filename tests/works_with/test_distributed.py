"""Several processes: every check of distributed_worker.py, on 2 and on 4 ranks of one launch each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("needs torch.distributed with gloo", allow_module_level=True)

from distributed_worker import CHECKS, ONLY_ON_TWO_RANKS

WORKER = Path(__file__).with_name("distributed_worker.py")


def launch(ranks: int, folder: Path, *arguments: str) -> dict[str, list[str]]:
    """Run the worker under torchrun; return for each check what the ranks say of it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", str(WORKER), *arguments]
    environment = os.environ | {"WORKER_FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        command, env=environment, timeout=600, capture_output=True, text=True, check=False
    )
    results: dict[str, list[str]] = {}
    for path in sorted(folder.glob("rank*.json")):
        for name, result in json.loads(path.read_text()).items():
            results.setdefault(name, []).append(result)
    assert results, output.stderr
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the ranks of one launch said, by their number; a launch happens when first asked for."""
    known: dict[int, dict[str, list[str]]] = {}

    def find(ranks: int) -> dict[str, list[str]]:
        if ranks not in known:
            known[ranks] = {}  # what stays where the launch fails: it is not tried again
            known[ranks] = launch(ranks, tmp_path_factory.mktemp(f"ranks{ranks}"))
        return known[ranks]

    return find


@pytest.mark.parametrize(
    ("ranks", "name"),
    [(2, name) for name in CHECKS]
    + [(4, name) for name in CHECKS if name not in ONLY_ON_TWO_RANKS],
)
def test_that(ranks, name, results):
    said = results(ranks).get(name, ["not reached: an earlier check failed"])
    assert said == ["ok"] * ranks, "\n".join(said)


@pytest.mark.parametrize("how", ["dies", "stays away", "join"])
def test_a_rank_that_goes_away_is_an_error_within_the_timeout(how, tmp_path):
    said = launch(2, tmp_path, how)[how]
    assert said[0] == "ok", said[0]
