"""Times in turns, spreads and peak memory."""

import itertools
from collections import Counter

import pytest
import torch

from trainact.lab.cost import timing
from trainact.lab.cost.timing import (
    CONTROL,
    compare_times,
    compare_with_control,
    divide,
    list_orders,
    measure_peak_memory,
    summarise,
    time_call,
)

CPU = torch.device("cpu")


def list_turns(calls):
    """Return the names of calls without repetitions within a sample."""
    return [name for i, name in enumerate(calls) if i == 0 or calls[i - 1] != name]


def test_work_takes_turns():
    calls = []
    work = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = compare_times(work, 6)
    assert {name: len(samples) for name, samples in times.items()} == dict.fromkeys("abc", 6)
    assert len(list_turns(calls)) > 2 * 6


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_no_function_is_at_an_advantage_by_its_place_or_the_one_before_it(n):
    names = "abcdef"[:n]
    block = n if n % 2 == 0 else 2 * n
    for number in range(3):
        orders = list(itertools.islice(list_orders(names), number * block, (number + 1) * block))
        places = Counter((name, place) for order in orders for place, name in enumerate(order))
        assert set(places.values()) == {block // n}
        assert len(places) == n * n
        pairs = Counter(pair for order in orders for pair in itertools.pairwise(order))
        assert set(pairs.values()) <= {block // n}
        assert len(pairs) == n * (n - 1)


def test_further_rounds_take_further_orders(monkeypatch):
    monkeypatch.setattr(timing, "time_call", lambda run: run() or 1.0)
    calls = []
    work = {name: lambda name=name: calls.append(name) for name in "abcd"}
    for first in (0, 5):
        compare_times(work, 5, first=first)
    orders = [calls[i : i + 4] for i in range(0, len(calls), 4)]
    assert orders[1:6] + orders[7:] == list(itertools.islice(list_orders("abcd"), 10))


def test_a_long_contest_is_cut_short_but_not_below_the_fewest_rounds(monkeypatch):
    monkeypatch.setattr(timing, "time_call", lambda run: 1.0)
    monkeypatch.setattr(timing, "LONG_CONTEST", 0.0)
    assert len(compare_times({"a": int}, 50)["a"]) == timing.FEWEST_ROUNDS
    assert len(compare_times({"a": int}, 3)["a"]) == 3


def test_a_call_is_timed_with_the_threads_of_the_process():
    seen = []
    assert time_call(lambda: seen.append(torch.get_num_threads())) > 0
    assert set(seen) == {torch.get_num_threads()}


def test_plain_runs_twice_in_each_round(monkeypatch):
    monkeypatch.setattr(timing, "time_call", lambda run: run() or 1.0)
    calls = []
    work = {name: lambda name=name: calls.append(name) for name in ("plain", "a", "b")}
    contest = compare_with_control(work, 4, repeats=0)
    assert {name: len(samples) for name, samples in contest.times.items()} == dict.fromkeys(work, 4)
    assert contest.control["count"] == 4
    assert calls.count("plain") == 2 * calls.count("a") == 10


def pretend_times(monkeypatch, controls):
    """Let each attempt see these times of plain's second run; the first takes 1 ms."""
    attempts, done = iter(controls), []

    def compare(entrants, rounds, progress, *, first):
        assert first == rounds * len(done)
        done.append(first)
        assert list(entrants) == ["plain", "trainact", "extra", CONTROL]
        times = {name: [1.0] * rounds for name in entrants}
        return times | {CONTROL: next(attempts)}

    monkeypatch.setattr(timing, "compare_times", compare)
    return {"plain": int, "trainact": int, "extra": int}


def test_a_quiet_contest_is_held_once(monkeypatch):
    work = pretend_times(monkeypatch, [[0.99, 1.0, 1.01]])
    record = compare_with_control(work, 3).to_record()
    assert (record["noisy"], record["attempts"]) == (False, 1)
    assert record["plain_again_over_plain"]["median"] == 1


def test_a_noisy_contest_gets_more_rounds_until_it_is_quiet(monkeypatch):
    rounds = [[0.9, 1.0, 1.1], [0.995, 1.0, 1.005], [0.999, 1.0, 1.001]]
    work = pretend_times(monkeypatch, rounds)
    contest = compare_with_control(work, 3)
    assert (contest.noisy, contest.attempts) == (False, 3)
    assert contest.control == summarise([ratio for part in rounds for ratio in part])
    assert len(contest.times["plain"]) == 9


def test_after_three_repeats_it_is_marked(monkeypatch):
    work = pretend_times(monkeypatch, [[0.8, 1.0, 1.2]] * 4)
    contest = compare_with_control(work, 3)
    assert (contest.noisy, contest.attempts) == (True, 4)


def test_a_long_noisy_contest_is_not_repeated_again(monkeypatch):
    monkeypatch.setattr(timing, "LONGEST_CONTEST", 0.0)
    work = pretend_times(monkeypatch, [[0.8, 1.0, 1.2]] * 4)
    contest = compare_with_control(work, 3)
    assert (contest.noisy, contest.attempts) == (True, 1)


def test_the_load_by_other_processes_is_recorded(monkeypatch, tmp_path):
    work = {"plain": lambda: torch.ones(100).sum(), "a": lambda: None}
    load = compare_with_control(work, 1, repeats=0).load
    assert set(load) == {"load_before", "load_after", "cores_of_others"}
    monkeypatch.setattr(timing, "STAT", tmp_path / "missing")
    assert compare_with_control(work, 1, repeats=0).load["cores_of_others"] is None


def test_the_load_of_others_is_what_this_process_did_not_use(monkeypatch):
    busy, clock, own = iter([100.0, 130.0]), iter([0.0, 10.0]), iter([5.0, 20.0])
    monkeypatch.setattr(timing, "_read_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(timing.time, "process_time", lambda: next(own))
    assert timing._LoadMeter().stop()["cores_of_others"] == 1.5


def test_a_summary_is_the_median_and_its_interval():
    summary = summarise([4.0, 1.0, 3.0, 2.0, 5.0])
    assert summary == {"median": 3, "low": 1, "high": 5, "count": 5}
    summary = summarise([float(i) for i in range(1, 21)])  # the sign test's table: ranks 6 and 15
    assert summary == {"median": 10.5, "low": 6, "high": 15, "count": 20}
    assert summarise([7.0]) == {"median": 7, "low": 7, "high": 7, "count": 1}


def test_peak_memory_is_what_the_allocator_held_at_once():
    def work():
        first = torch.empty(1000, dtype=torch.float64)
        del first
        return torch.empty(3000, dtype=torch.float64)

    assert measure_peak_memory(work, CPU) == pytest.approx(24_000, abs=200)


def test_ratios_are_taken_round_by_round():
    assert divide([2.0, 6.0, 12.0], [1.0, 2.0, 3.0])["median"] == 3
