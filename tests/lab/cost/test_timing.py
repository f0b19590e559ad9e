"""Times in turns, spreads and peak memory."""

import pytest
import torch

from trainact.lab.cost.timing import compare_times, divide, measure_peak_memory, summarise

CPU = torch.device("cpu")


def test_work_takes_turns_and_the_order_rotates():
    calls = []
    work = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = compare_times(work, 3, CPU)
    assert {name: len(samples) for name, samples in times.items()} == {"a": 3, "b": 3, "c": 3}
    order = [name for i, name in enumerate(calls) if i == 0 or calls[i - 1] != name]
    assert "".join(order[-9:]) == "abcbcacab"


def test_a_spread_is_median_and_quartiles():
    spread = summarise([4.0, 1.0, 3.0, 2.0, 5.0])
    assert spread == {"median": 3, "low": 2, "high": 4, "count": 5}
    assert summarise([7.0]) == {"median": 7, "low": 7, "high": 7, "count": 1}


def test_peak_memory_is_what_the_allocator_held_at_once():
    def work():
        first = torch.empty(1000, dtype=torch.float64)
        del first
        return torch.empty(3000, dtype=torch.float64)

    assert measure_peak_memory(work, CPU) == pytest.approx(24_000, abs=200)


def test_ratios_are_taken_round_by_round():
    assert divide([2.0, 6.0, 12.0], [1.0, 2.0, 3.0])["median"] == 3
