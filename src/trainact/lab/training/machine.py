"""Devices, ranks and precision, through Accelerate."""

import ctypes
import platform
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedDataParallelKwargs, patch_environment
from torch import nn

from trainact.errors import TrActError, TrActValueError
from trainact.lab.ranks import count_ranks
from trainact.lab.recipes.recipe import RunFields
from trainact.lab.training.trackers import check_tracker

__all__ = [
    *("allow_unused_parameters", "find_exact_dtype"),
    *("keep_freed_memory", "start_machine", "sum_over_ranks"),
]

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Parameters of glibc's ``mallopt``."""
TOP_PAD = 2**26
"""Bytes that glibc asks the system for in addition, so that it asks less often."""


def start_machine(fields: RunFields, folder: Path) -> Accelerator:
    """Return an accelerator for the run's device and precision; every rank calls this.

    Raises:
        TrActValueError: this machine does not have the device, the device does not support the
            precision, or the tracker's package is missing.
    """
    kind = fields.device.split(":")[0]
    present = {
        "auto": True,
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not present.get(kind):
        here = ", ".join(name for name, is_there in present.items() if is_there)
        raise TrActValueError(
            f"run.device is {fields.device!r}, which this machine does not have; it has {here}."
        )
    use_cpu = kind == "cpu" or not (present["cuda"] or present["mps"])  # else ranks are not seen
    if use_cpu and fields.precision == "fp16":
        raise TrActValueError(
            "run.precision is 'fp16', which needs a GPU, but this run is on the CPU: set "
            "run.precision to bf16 or no."
        )
    check_tracker(fields.tracker)
    if use_cpu:
        keep_freed_memory()
    in_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    other_kind = kind == "cpu" and torch.cuda.is_available()
    AcceleratorState._reset_state(reset_partial_state=other_kind or not in_group)
    GradientState._reset_state()
    tracker = None if fields.tracker == "none" else fields.tracker
    device = {"ACCELERATE_TORCH_DEVICE": fields.device} if ":" in fields.device else {}
    try:
        with patch_environment(**device):
            accelerator = Accelerator(
                cpu=use_cpu,
                mixed_precision=fields.precision,
                log_with=tracker,
                project_dir=folder if tracker else None,
            )
    except (ValueError, ImportError) as error:
        raise TrActValueError(f"the device cannot be set up: {error}") from error
    if accelerator.num_processes != count_ranks():
        raise TrActError(
            f"{count_ranks()} ranks were launched, but Accelerate sees "
            f"{accelerator.num_processes}; set run.device to the kind of device that they have."
        )
    return accelerator


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, if its allocator is glibc's.

    By default, glibc returns large tensors to the system when they are freed, and the next step
    gets their memory back page by page. With large batches that takes much of a step's time.

    Returns:
        Whether the allocator took the settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: TOP_PAD}
    return all([mallopt(name, value) for name, value in settings.items()])


def allow_unused_parameters(accelerator: Accelerator, network: nn.Module) -> None:
    """Let DDP search for unused parameters if the network skips some, as stochastic depth does.

    Ranks skip independently of each other, so a parameter may have a gradient on one rank only. The
    search costs time in every step and is done only if a module's ``skips_parameters`` is True.
    Call this before ``prepare``.
    """
    if any(getattr(module, "skips_parameters", False) is True for module in network.modules()):
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)


def find_exact_dtype(device: torch.device) -> torch.dtype:
    """Return the most precise float type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def sum_over_ranks(accelerator: Accelerator, values: torch.Tensor) -> list[float]:
    """Return the sum of all ranks' vectors."""
    if accelerator.num_processes > 1:
        values = accelerator.reduce(values, reduction="sum")
    return [float(value) for value in values.tolist()]
