"""Time and memory of competing pieces of work, measured so that a noisy machine cancels out."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["Spread", "compare_times", "count_kernels", "measure_peak_memory", "summarise"]

Work = Callable[[], Any]
SHORTEST_SAMPLE_MS = 5.0
"""Work shorter than this is repeated within one sample, to be seen above the clock."""


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles, over ``count`` samples."""

    median: float
    low: float
    high: float
    count: int

    def to_dict(self) -> dict[str, float]:
        """Return plain numbers for a record, with four digits that mean something."""
        return {key: float(f"{value:.4g}") for key, value in asdict(self).items()}


def summarise(values: list[float]) -> Spread:
    """Return the median and the quartiles.

    >>> summarise([3.0, 1.0, 2.0]).median
    2.0
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, len(values))


def compare_times(
    work: Mapping[str, Work],
    rounds: int,
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Return the milliseconds of each work in each round; all take turns within a round.

    Sample i of one work and sample i of another were taken side by side, so their ratio is what
    to look at. The order rotates from round to round, and one more round before warms up.
    """
    repeats = {name: _choose_repeats(run, device) for name, run in work.items()}
    names = list(work)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(_time(work[name], repeats[name], device))
        progress()
    return times


def measure_peak_memory(work: Work, device: torch.device) -> int:
    """Return the most bytes that the allocator held during ``work`` beyond those before it."""
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def count_kernels(work: Work, device: torch.device) -> int | None:
    """Return the number of kernels that ``work`` launches, None on a CPU."""
    if device.type != "cuda":
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize(device)
    return sum(event.count for event in profiler.key_averages())


def _choose_repeats(run: Work, device: torch.device) -> int:
    _time(run, 1, device)
    return max(1, round(SHORTEST_SAMPLE_MS / max(_time(run, 1, device), 1e-3)))


def _time(run: Work, repeats: int, device: torch.device) -> float:
    """Return the milliseconds of one run; a GPU is waited for outside the timed region."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(end) / repeats
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) * 1e3 / repeats
