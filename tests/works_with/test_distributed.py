"""Every check of distributed_worker.py on 2 and on 4 ranks, with one launch for each."""

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
from slow_cases import mark_slow

WORKER = Path(__file__).with_name("distributed_worker.py")


def launch(ranks: int, folder: Path, *arguments: str) -> dict[str, list[str]]:
    """Run the worker under torchrun; return the results of all ranks for each check."""
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
    """The results by number of ranks; each launch runs when its results are first needed."""
    known: dict[int, dict[str, list[str]]] = {}

    def find(ranks: int) -> dict[str, list[str]]:
        if ranks not in known:
            known[ranks] = {}  # a failed launch is not repeated
            known[ranks] = launch(ranks, tmp_path_factory.mktemp(f"ranks{ranks}"))
        return known[ranks]

    return find


@pytest.mark.parametrize(
    ("ranks", "name"),
    [(2, name) for name in CHECKS]
    + mark_slow([(4, name) for name in CHECKS if name not in ONLY_ON_TWO_RANKS], fast=0),
)
def test_that(ranks, name, results):
    outcomes = results(ranks).get(name, ["not reached: an earlier check failed"])
    assert outcomes == ["ok"] * ranks, "\n".join(outcomes)


@pytest.mark.parametrize("how", ["dies", "stays away", "join"])
@pytest.mark.slow
def test_a_missing_rank_is_an_error_within_the_timeout(how, tmp_path):
    outcomes = launch(2, tmp_path, how)[how]
    assert outcomes[0] == "ok", outcomes[0]
