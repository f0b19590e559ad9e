"""Time and memory of several functions, measured in turns so that noise of the machine cancels."""

import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.stats
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

__all__ = [
    "CONTROL",
    "REPEATS",
    "WIDEST_CONTROL",
    "Contest",
    "Work",
    "compare_times",
    "compare_with_control",
    "count_kernels",
    "divide",
    "list_orders",
    "measure_peak_memory",
    "summarise",
    "time_call",
]

Work = Callable[[], Any]
SHORTEST_SAMPLE = 0.05
"""Seconds; a shorter function is repeated within one sample, so that disturbances average out."""

LONG_CONTEST, FEWEST_ROUNDS = 40.0, 7
"""After so many seconds, and at least so many rounds, the planned number of rounds is cut short."""

CONTROL = "plain_again"
"""Name of the second run of the plain work in each round (A/A)."""

WIDEST_CONTROL = 0.03
"""A contest whose A/A interval is wider is repeated, and in the end marked noisy."""

CONFIDENCE = 0.95

REPEATS = 3
LONGEST_CONTEST = 300.0
"""After so many seconds a noisy contest is not repeated again."""
STAT = Path("/proc/stat")


def summarise(values: list[float]) -> dict[str, float]:
    """Return the median, its 95 % confidence interval and the number of samples, for a record.

    The interval is that of the sign test: from the k-th smallest to the k-th largest sample. With
    fewer than 6 samples these are the smallest and the largest.

    >>> summarise([3.0, 1.0, 2.0])
    {'median': 2.0, 'low': 1.0, 'high': 3.0, 'count': 3.0}
    """
    ordered = sorted(values)
    k = max(1, int(scipy.stats.binom.ppf((1 - CONFIDENCE) / 2, len(ordered), 0.5)))
    numbers = {
        "median": statistics.median(ordered),
        "low": ordered[k - 1],
        "high": ordered[-k],
        "count": len(ordered),
    }
    return {key: float(f"{value:.4g}") for key, value in numbers.items()}


def divide(times: list[float], reference: list[float]) -> dict[str, float]:
    """Summarise the ratios of samples taken in the same rounds."""
    return summarise([a / b for a, b in zip(times, reference, strict=True)])


def list_orders(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the orders of the rounds, in which no function is at an advantage; there is no end.

    A function leaves caches and the memory allocator in a state that makes the next one faster or
    slower. So the orders come in blocks (Williams designs): in a block, each function has each
    place equally often, and follows each other function equally often.

    >>> [" ".join(order) for order in itertools.islice(list_orders("ab"), 4)]
    ['b a', 'a b', 'b a', 'a b']
    """
    n = len(names)
    zigzag = [-(place // 2) if place % 2 == 0 else place // 2 + 1 for place in range(n)]
    for block in itertools.count():
        draw = random.Random(block)
        drawn = draw.sample(names, n)
        rows = [[drawn[(step + shift) % n] for step in zigzag] for shift in range(n)]
        if n % 2 == 1:
            rows += [row[::-1] for row in rows]
        yield from draw.sample(rows, len(rows))


def compare_times(
    work: Mapping[str, Work],
    rounds: int,
    progress: Callable[[], None] = lambda: None,
    *,
    first: int = 0,
) -> dict[str, list[float]]:
    """Return the milliseconds of each function in each round, after one round of warm-up.

    The functions take turns within a round, so sample i of one and sample i of another were taken
    under the same load: compare their ratio. ``first`` is the number of earlier rounds, which used
    the first of the orders (see :func:`list_orders`).
    """
    names = list(work)
    orders = itertools.islice(list_orders(names), first, first + rounds)
    for name in names:
        work[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    started = time.perf_counter()
    for done, order in enumerate(orders, start=1):
        for name in order:
            times[name].append(time_call(work[name]))
        progress()
        if done >= FEWEST_ROUNDS and time.perf_counter() - started > LONG_CONTEST:
            break
    return times


@dataclass(frozen=True)
class Contest:
    """Times of several functions, with what says how far to trust them."""

    times: dict[str, list[float]]  # milliseconds by round; without the control
    control: dict[str, float]  # plain again divided by plain: 1, but for noise
    attempts: int
    load: dict[str, float | None]

    @property
    def spread(self) -> float:
        """Width of the control's interval."""
        return self.control["high"] - self.control["low"]

    @property
    def noisy(self) -> bool:
        """Whether the control is too wide for the times to be compared."""
        return self.spread > WIDEST_CONTROL

    def to_record(self) -> dict[str, Any]:
        """Return all but the times, for a record."""
        return {
            f"{CONTROL}_over_plain": self.control,
            "noisy": self.noisy,
            "attempts": self.attempts,
            "load": self.load,
        }


def compare_with_control(
    work: Mapping[str, Work],
    rounds: int,
    progress: Callable[[], None] = lambda: None,
    repeats: int = REPEATS,
) -> Contest:
    """Compare the times with those of ``plain``, which runs twice in each round.

    If the interval of the ratio of the two is too wide, ``rounds`` more rounds follow, up to
    ``repeats`` times, or until the contest has taken too long.
    """
    entrants = {**work, CONTROL: work["plain"]}
    times: dict[str, list[float]] = {name: [] for name in entrants}
    meter, began = _LoadMeter(), time.perf_counter()
    for attempt in range(1, repeats + 2):
        report = progress if attempt == 1 else lambda: None
        measured = compare_times(entrants, rounds, report, first=len(times["plain"]))
        for name in times:
            times[name] += measured[name]
        control = divide(times[CONTROL], times["plain"])
        contest = Contest(
            {name: times[name] for name in work},
            control,
            attempt,
            meter.stop(),
        )
        if not contest.noisy or time.perf_counter() - began > LONGEST_CONTEST:
            break
    return contest


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


def time_call(run: Work) -> float:
    """Return the milliseconds of one call, from as many as a sample takes.

    torch's timer waits for accelerators before and after; here it keeps the number of threads.
    """
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=SHORTEST_SAMPLE).median * 1e3


class _LoadMeter:
    """Measures how busy other processes keep the machine."""

    def __init__(self) -> None:
        self.average = _read_load_average()
        self.start = time.perf_counter(), time.process_time(), _read_busy_seconds()

    def stop(self) -> dict[str, float | None]:
        """Return the load averages before and after, and the cores that others kept busy."""
        began, own, busy = self.start
        others, now = None, _read_busy_seconds()
        if busy is not None and now is not None:
            wall = max(time.perf_counter() - began, 1e-3)
            others = max(0.0, (now - busy - (time.process_time() - own)) / wall)
            others = float(f"{others:.2g}")
        after = _read_load_average()
        return {"load_before": self.average, "load_after": after, "cores_of_others": others}


def _read_load_average() -> float | None:
    """Return the load average of the last minute, this process included; None on Windows."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _read_busy_seconds() -> float | None:
    """Return the seconds in which cores were busy since the machine started; None if unknown."""
    try:
        user, nice, system, _idle, _wait, *rest = map(
            int, STAT.read_text().split("\n", 1)[0].split()[1:9]
        )
    except (OSError, ValueError):
        return None
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
