"""Devices of runs side by side: one GPU for each, and no more runs than the machine can take."""

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator

import torch

from trainact.errors import TrActValueError
from trainact.lab.text import count

__all__ = ["JOBS_PER_CORE", "JOBS_PER_GPU", "VISIBLE", "GpuPool", "check_jobs", "list_gpus"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that names the GPUs of a process."""
JOBS_PER_GPU = 4
JOBS_PER_CORE = 2
"""Runs that may share a device; more would only wait for each other."""
ANY_GPU = ("auto", "cuda")
"""Values of ``run.device`` with which a run takes any free GPU."""


def list_gpus() -> tuple[str, ...]:
    """Return the GPUs of this process, by their names in ``CUDA_VISIBLE_DEVICES``."""
    number, given = torch.cuda.device_count(), os.environ.get(VISIBLE)
    names = map(str, range(number)) if given is None else given.split(",")
    return tuple(name.strip() for name in names)[:number]


def check_jobs(jobs: int, devices: Iterable[str]) -> None:
    """Check that so many runs at a time make sense on the devices of all runs.

    ``devices`` are values of ``run.device``.

    Raises:
        TrActValueError: there are fewer than 1 job, or more than the GPUs or cores can take.
    """
    if jobs < 1:
        raise TrActValueError(f"--jobs takes a positive number; got {jobs}.")
    for device in sorted(set(devices)) if jobs > 1 else ():
        most, reason = _find_limit(device)
        if jobs > most:
            raise TrActValueError(
                f"--jobs takes at most {most} with run.device={device!r} here ({reason}); got "
                f"{jobs}. More runs at a time would only wait for each other."
            )


def _find_limit(device: str) -> tuple[int, str]:
    """Return the largest number of runs at a time, and the reason for it."""
    gpus = len(list_gpus()) if device in ANY_GPU else int(device.split(":")[0] != "cpu")
    if gpus:
        return JOBS_PER_GPU * gpus, f"{count(gpus, 'GPU')}, {JOBS_PER_GPU} runs on each"
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return JOBS_PER_CORE * cores, f"{count(cores, 'core')}, {JOBS_PER_CORE} runs on each"


class GpuPool:
    """Gives each of several runs at a time one GPU; the GPUs take turns.

    Args:
        jobs: runs at a time.
    """

    def __init__(self, jobs: int) -> None:
        gpus = list_gpus()
        self.free = deque(gpus[job % len(gpus)] for job in range(jobs if gpus else 0))

    @contextlib.contextmanager
    def take(self, device: str) -> Iterator[dict[str, str]]:
        """Yield the variables that let a process see one GPU, which is taken meanwhile.

        There are none without a GPU, or if ``device``, the recipe's ``run.device``, names one.
        """
        if not self.free or device not in ANY_GPU:
            yield {}
            return
        gpu = self.free.popleft()  # threads may do this at the same time
        try:
            yield {VISIBLE: gpu}
        finally:
            self.free.append(gpu)
