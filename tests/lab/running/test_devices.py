"""GPUs for runs side by side, on a machine that pretends to have some."""

import os
import threading
from collections import Counter

import pytest
import torch

from lab_helpers import make_quick
from trainact.errors import TrActValueError
from trainact.lab.running import runner
from trainact.lab.running.devices import JOBS_PER_GPU, VISIBLE, GpuPool, check_jobs, list_gpus
from trainact.lab.running.display import Display
from trainact.lab.running.plan import place_runs
from trainact.lab.running.runner import run_all


@pytest.fixture
def gpus(monkeypatch):
    """Let the machine have so many GPUs."""
    monkeypatch.delenv(VISIBLE, raising=False)
    return lambda number: monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


@pytest.mark.parametrize(
    ("number", "given", "names"),
    [
        (0, None, ()),
        (4, None, ("0", "1", "2", "3")),
        (2, "5, 7", ("5", "7")),
        (2, "GPU-8f6b,GPU-91aa", ("GPU-8f6b", "GPU-91aa")),
        (0, "", ()),
        (1, "3,-1,4", ("3",)),
    ],
)
def test_gpus_have_the_names_of_the_environment(gpus, monkeypatch, number, given, names):
    gpus(number)
    if given is not None:
        monkeypatch.setenv(VISIBLE, given)
    assert list_gpus() == names


def test_eight_jobs_on_four_gpus_are_two_on_each_at_any_time(gpus):
    gpus(4)
    pool, taken, most, lock = GpuPool(8), Counter(), Counter(), threading.Lock()
    start = threading.Barrier(8)

    def do_runs():
        start.wait()
        for _ in range(50):
            with pool.take("auto") as variables:
                gpu = variables[VISIBLE]
                with lock:
                    taken[gpu] += 1
                    most[gpu] = max(most[gpu], taken[gpu])
                with lock:
                    taken[gpu] -= 1

    threads = [threading.Thread(target=do_runs) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {"0", "1", "2", "3"}
    assert max(most.values()) <= 2


def test_a_gpu_is_free_again_after_a_failure_and_the_next_run_takes_another(gpus):
    gpus(2)
    pool = GpuPool(2)

    def fail():
        with pool.take("cuda") as first:
            assert first == {VISIBLE: "0"}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pool.take("auto") as second, pool.take("auto") as third:
        assert {second[VISIBLE], third[VISIBLE]} == {"0", "1"}


@pytest.mark.parametrize("device", ["cpu", "cuda:1", "mps"])
def test_a_run_with_a_device_of_its_own_keeps_it(gpus, device):
    gpus(2)
    with GpuPool(2).take(device) as variables:
        assert variables == {}


def test_without_gpus_nothing_is_set(gpus):
    gpus(0)
    with GpuPool(3).take("auto") as variables:
        assert variables == {}


def test_more_jobs_than_make_sense_are_refused(gpus, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    gpus(2)
    check_jobs(2 * JOBS_PER_GPU, ["auto"])
    with pytest.raises(TrActValueError, match=r"at most 8 .*'auto' here \(2 GPUs, 4 runs on each"):
        check_jobs(9, ["auto"])
    with pytest.raises(TrActValueError, match=r"at most 4 .*'cuda:1' here \(1 GPU, 4 runs on each"):
        check_jobs(5, ["cuda:1"])
    with pytest.raises(TrActValueError, match=r"at most 6 .*'cpu' here \(3 cores, 2 runs on each"):
        check_jobs(7, ["auto", "cpu"])
    gpus(0)
    check_jobs(6, ["auto"])
    with pytest.raises(TrActValueError, match=r"\(3 cores, 2 runs on each\); got 7\."):
        check_jobs(7, ["auto"])
    with pytest.raises(TrActValueError, match="positive number; got 0"):
        check_jobs(0, [])


class Unbuilt:
    """A session whose network is not built: with pretended GPUs torch would look for them."""

    build = staticmethod(lambda recipe, data: None)


def test_each_process_of_eight_jobs_sees_one_gpu(gpus, tmp_path, monkeypatch):
    """The processes write the GPU that they see, and wait until all eight have."""
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\n"
        f'touch "{tmp_path}/gpu-$CUDA_VISIBLE_DEVICES"\n'
        f'for i in $(seq 600); do [ "$(ls {tmp_path} | grep -c gpu-)" = 8 ] && break; sleep 0.1; '
        "done\n"
        'echo "on GPU $CUDA_VISIBLE_DEVICES" >&2; exit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    gpus(8)
    monkeypatch.setattr(runner, "find_session", lambda data: Unbuilt)
    recipes = [make_quick(run__seed=seed, run__device="auto") for seed in range(8)]
    results = run_all(place_runs(recipes, tmp_path / "out"), 8, Display())
    assert sorted(result.failure for result in results) == [
        f"its process ended with code 1: on GPU {number}" for number in range(8)
    ]
