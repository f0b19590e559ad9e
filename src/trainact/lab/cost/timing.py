"""Time and memory of several functions, measured in turns so that noise of the machine cancels."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["Work", "compare_times", "count_kernels", "divide", "measure_peak_memory", "summarise"]

Work = Callable[[], Any]
SHORTEST_SAMPLE_MS = 5.0
"""A shorter function is repeated within one sample, for the resolution of the clock."""


def summarise(values: list[float]) -> dict[str, float]:
    """Return median, quartiles and number of samples with four significant digits, for a record.

    >>> summarise([3.0, 1.0, 2.0])
    {'median': 2.0, 'low': 1.5, 'high': 2.5, 'count': 3.0}
    """
    several = values if len(values) > 1 else values * 2
    low, median, high = statistics.quantiles(several, n=4, method="inclusive")
    numbers = {"median": median, "low": low, "high": high, "count": len(values)}
    return {key: float(f"{value:.4g}") for key, value in numbers.items()}


def divide(times: list[float], reference: list[float]) -> dict[str, float]:
    """Summarise the ratios of samples taken in the same rounds."""
    return summarise([a / b for a, b in zip(times, reference, strict=True)])


def compare_times(
    work: Mapping[str, Work],
    rounds: int,
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Return the milliseconds of each function in each round, after one round of warm-up.

    The functions take turns within a round, and the order rotates from round to round. So sample i
    of one and sample i of another were taken under the same load: compare their ratio.
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
    """Return the peak of allocated bytes during ``work``, minus those allocated before it."""
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
    """Return the number of kernels that ``work`` launches on a GPU; None on a CPU."""
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
    """Return the milliseconds of one call; a GPU is synchronized outside the timed region."""
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
