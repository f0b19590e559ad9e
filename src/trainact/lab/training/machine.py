"""Devices, ranks and precision, through Accelerate."""

import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from trainact.errors import TrActError, TrActValueError
from trainact.lab.ranks import count_ranks
from trainact.lab.recipes.recipe import RunFields
from trainact.lab.training.batches import Place

__all__ = [
    "expect_skipped_parameters",
    "find_place",
    "start_machine",
    "start_tracker",
    "sum_over_ranks",
]


def start_machine(fields: RunFields, folder: Path) -> Accelerator:
    """Return an accelerator for the run's device and precision, on each rank that was launched.

    Raises:
        TrActValueError: there is no such device here, it does not know the precision, or there is
            no package for the tracker.
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
        raise TrActValueError(f"run.device is {fields.device!r}; here there are {here}.")
    use_cpu = kind == "cpu" or not (present["cuda"] or present["mps"])  # or ranks are not seen
    if use_cpu and fields.precision == "fp16":
        raise TrActValueError(
            "run.precision is 'fp16', which needs a GPU, and this run is done on the CPU: set "
            "run.precision to bf16 or no."
        )
    AcceleratorState._reset_state(reset_partial_state=kind == "cpu" and torch.cuda.is_available())
    GradientState._reset_state()
    if ":" in fields.device:
        os.environ["ACCELERATE_TORCH_DEVICE"] = fields.device
    tracker = None if fields.tracker == "none" else fields.tracker
    try:
        accelerator = Accelerator(
            cpu=use_cpu,
            mixed_precision=fields.precision,
            log_with=tracker,
            project_dir=folder if tracker else None,
        )
    except (ValueError, ImportError) as error:
        raise TrActValueError(f"the machine cannot be set up: {error}") from error
    if accelerator.num_processes != count_ranks():
        raise TrActError(
            f"{count_ranks()} ranks were launched, Accelerate sees {accelerator.num_processes}; "
            "set run.device to the kind of device that they have."
        )
    return accelerator


def start_tracker(accelerator: Accelerator, fields: RunFields, config: dict[str, Any]) -> None:
    """Open the tracker that the recipe names, if any.

    Raises:
        TrActError: its package is not installed.
    """
    if fields.tracker == "none":
        return
    if not accelerator.log_with:
        raise TrActError(
            f"run.tracker is {fields.tracker!r}, but its package is not installed: "
            f"pip install {fields.tracker}"
        )
    accelerator.init_trackers("trainact", config=config)


def expect_skipped_parameters(accelerator: Accelerator, network: nn.Module) -> None:
    """Prepare for a network that leaves parameters out of some steps, as stochastic depth does.

    Ranks draw branches each for itself, so one may have a gradient where another has none. They
    must then look for unused parameters in every step, which costs time, and so is done only for
    networks with a module whose ``skips_parameters`` is true. Call it before ``prepare``.
    """
    if any(getattr(module, "skips_parameters", False) is True for module in network.modules()):
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)


def find_place(accelerator: Accelerator) -> Place:
    """Return this process's place among all."""
    return Place(accelerator.process_index, accelerator.num_processes, accelerator.device)


def sum_over_ranks(accelerator: Accelerator, values: torch.Tensor) -> list[float]:
    """Return the sum of each rank's vector of numbers."""
    if accelerator.num_processes > 1:
        values = accelerator.reduce(values, reduction="sum")
    return [float(value) for value in values.tolist()]
