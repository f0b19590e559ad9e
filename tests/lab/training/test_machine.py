"""Accelerate is set up for one run at a time and leaves the environment as it was."""

import os

import pytest
import torch

from lab_helpers import make_quick
from trainact.errors import TrActValueError
from trainact.lab.training.machine import start_machine


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


def test_a_device_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(TrActValueError, match=r"run.device is 'tpu', .* it has auto, cpu"):
        start_machine(make_quick(run__device="tpu").run, tmp_path)
