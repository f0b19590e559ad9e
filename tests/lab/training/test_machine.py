"""Accelerate is set up for one run at a time and leaves the environment as it was."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from lab_helpers import make_quick
from trainact.errors import TrActValueError
from trainact.lab.training.machine import keep_freed_memory, start_machine


@pytest.mark.parametrize("before", [None, "cpu"])
def test_the_device_is_set_for_one_run_only(tmp_path, monkeypatch, before):
    if before is not None:
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", before)
    environment = dict(os.environ)
    first = start_machine(make_quick(run__device="cpu:0").run, tmp_path)
    assert first.device == torch.device("cpu:0")
    assert dict(os.environ) == environment
    second = start_machine(make_quick(run__device="cpu").run, tmp_path)
    assert second.device == torch.device("cpu")


FAULTS = """
import resource
import torch
from trainact.lab.training.machine import keep_freed_memory

def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

count_faults()
returned = count_faults()
assert keep_freed_memory()
count_faults()
print(returned, count_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's allocator")
def test_freed_memory_is_not_returned_page_by_page():
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "LD_"))}
    environment = plain | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FAULTS]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    returned, kept = map(int, output.stdout.split())
    assert kept < 0.01 * returned


def test_another_allocator_keeps_its_settings(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()


def test_a_device_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(TrActValueError, match=r"run.device is 'tpu', .* it has auto, cpu"):
        start_machine(make_quick(run__device="tpu").run, tmp_path)
