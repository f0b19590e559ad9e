"""The global random states of Python, NumPy and torch."""

import contextlib
import random
import sys
from collections.abc import Iterator

import torch
from torch import nn

__all__ = ["kept_random_states"]


@contextlib.contextmanager
def kept_random_states(model: nn.Module) -> Iterator[None]:
    """Restore the random states at the end of the block: those of the model's devices too.

    A DataLoader that shuffles draws from them, and so do the transforms of its images.
    """
    devices = {parameter.device for parameter in model.parameters()}
    accelerators = [device for device in devices if device.type not in ("cpu", "meta")]
    kind = accelerators[0].type if accelerators else "cuda"  # of no device; older torch needs one
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    try:
        indices = [device.index or 0 for device in accelerators]
        with torch.random.fork_rng(indices, device_type=kind):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
