"""A batch on four devices gives the gradient of one device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")
pytest.importorskip("flax", reason="the layers need flax")


@pytest.mark.slow
def test_sharded_batches_give_the_gradient_of_one_device():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    path = os.pathsep.join(filter(None, sys.path))
    shown = subprocess.run(
        [sys.executable, Path(__file__).parent / "sharded_worker.py"],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    lines = dict(line.split(" ", 1) for line in shown.stdout.splitlines())
    assert lines.pop("inference") == "0 0"
    names = {"jit", "shard_map", "unchecked", "nnx", "explicit", "explicit-centered"}
    assert names | {"explicit-conv"} < set(lines)
    assert len(lines) == 12  # and the weight's four shardings, and one axis of two
    for difference in lines.values():
        assert float(difference) < 1e-5
