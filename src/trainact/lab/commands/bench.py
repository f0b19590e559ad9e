"""``trainact bench``: what TrAct costs, beside the plain layer and the authors' package.

Everything takes turns in one process, and what is reported are medians of paired ratios with their
quartiles. Whole steps are too noisy on most machines to resolve a percent, so their headline is
TrAct's own work, measured alone, divided by the plain step; the raw ratio stands beside it.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trainact.errors import TrActValueError
from trainact.lab.cost.cases import GROWTH, LAYERS, NETWORKS, LayerContest, NetworkContest
from trainact.lab.cost.overhead import FILE, TABLE, measure_zoo, render_zoo
from trainact.lab.cost.timing import compare_times, count_kernels, measure_peak_memory, summarise
from trainact.lab.environment import describe_environment

__all__ = ["add_arguments", "run"]

SECTIONS = ("layer", "step", "growth")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
ROUNDS = {"layer": 31, "step": 9, "growth": 7}
QUICK_ROUNDS = {"layer": 5, "step": 3, "growth": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--sections", default=",".join(SECTIONS), help="of layer,step,growth")
    parser.add_argument("--only", default="", help="measure only cases whose name contains this")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ...")
    parser.add_argument("--dtype", default="float32", choices=list(DTYPES))
    parser.add_argument("--compile", action="store_true", help="compile layers and networks")
    parser.add_argument(
        "--zoo", action="store_true", help="instead: a step of each of the table's 36 networks"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, small growth")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder for record, plots")


def run(arguments: argparse.Namespace) -> int:
    """Measure the chosen sections, write the record and the plots, and print the tables."""
    sections = _check_sections(arguments.sections)
    device = _check_device(arguments.device)
    console = Console()
    if arguments.zoo:
        return _measure_zoo(arguments, device, console)
    bench = _Bench(arguments, device, console)
    record: dict[str, Any] = {
        "kind": "bench",
        "environment": describe_environment(arguments.device),
        "dtype": arguments.dtype,
        "compiled": arguments.compile,
        "quick": arguments.quick,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    for section in sections:
        record[section] = getattr(bench, f"measure_{section}")()
        _write_atomically(arguments.out / "bench.json", json.dumps(record, indent=1) + "\n")
        if section != "growth":
            console.print(make_table(section, record[section]))
    if any(record.get("growth", {}).values()):
        from trainact.lab.cost.plots import plot_growth

        for path in plot_growth(record, arguments.out):
            console.print(f"wrote {path}")
    console.print(f"wrote {arguments.out / 'bench.json'}")
    return 0


def _measure_zoo(arguments: argparse.Namespace, device: torch.device, console: Console) -> int:
    """Measure the networks whose name contains ``--only``, go on with a record that is there."""
    names = [name for name in TABLE if arguments.only.lower() in name]
    record = measure_zoo(names, arguments.out, device, DTYPES[arguments.dtype], console)
    console.print(render_zoo(record), markup=False, highlight=False)
    console.print(f"wrote {arguments.out / FILE}")
    return 0


class _Bench:
    """The three sections, with a progress bar over the rounds of each."""

    def __init__(
        self, arguments: argparse.Namespace, device: torch.device, console: Console
    ) -> None:
        self.only, self.compiled = arguments.only.lower(), arguments.compile
        self.dtype, self.device = DTYPES[arguments.dtype], device
        self.rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
        self.quick, self.console = arguments.quick, console

    def measure_layer(self) -> list[dict[str, Any]]:
        """Return ratios to the plain layer's forward and backward, and TrAct's peak memory."""
        return self._measure("layer", LAYERS, self._measure_one)

    def measure_step(self) -> list[dict[str, Any]]:
        """Return ratios to the plain training step."""
        return self._measure("step", NETWORKS, self._measure_one)

    def measure_growth(self) -> dict[str, list[dict[str, Any]]]:
        """Return milliseconds and peak bytes of each contender as one size grows."""
        measured = {}
        for size, sweep in GROWTH.items():
            points = sweep[:2] if self.quick else sweep
            contests = [contest for _, contest in points]
            rows = self._measure("growth", contests, self._measure_growth_point)
            values = dict(zip((c.name for c in contests), (v for v, _ in points), strict=True))
            measured[size] = [{size: values[row["name"]], **row} for row in rows]
        return measured

    def _measure(
        self,
        section: str,
        contests: Iterable[LayerContest | NetworkContest],
        measure: Callable[..., dict[str, Any]],
    ) -> list[dict[str, Any]]:
        chosen = [c for c in contests if self.only in c.name.lower()]
        rounds, rows = self.rounds[section], []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=self.console) as progress:
            task = progress.add_task(section, total=rounds * len(chosen))
            for contest in chosen:
                progress.update(task, description=f"{section}: {contest.name}")
                if not self.console.is_terminal:
                    self.console.print(f"{section}: {contest.name}")
                rows.append(measure(contest, rounds, lambda: progress.advance(task)))
        return rows

    def _measure_one(
        self, contest: LayerContest | NetworkContest, rounds: int, advance: Callable[[], None]
    ) -> dict[str, Any]:
        contenders = contest.set_up(self.device, self.dtype, self.compiled)
        work = contenders.work | {"extra": contenders.extra}
        times = compare_times(work, rounds, self.device, advance)
        plain = times["plain"]
        row: dict[str, Any] = {"name": contest.name, "shape": list(contest.shape)}
        row["plain_ms"] = summarise(plain).to_dict()
        for name in times.keys() - {"plain"}:
            ratios = [t / p for t, p in zip(times[name], plain, strict=True)]
            row[f"{name}_over_plain"] = summarise(ratios).to_dict()
        row["extra_bytes"] = measure_peak_memory(contenders.extra, self.device)
        row["input_bytes"] = contenders.input_bytes
        row["extra_kernels"] = count_kernels(contenders.extra, self.device)
        return row

    def _measure_growth_point(
        self, contest: LayerContest, rounds: int, advance: Callable[[], None]
    ) -> dict[str, Any]:
        contenders = contest.set_up(self.device, self.dtype, self.compiled)
        times = compare_times(contenders.work, rounds, self.device, advance)
        row: dict[str, Any] = {"name": contest.name, "input_bytes": contenders.input_bytes}
        for name, work in contenders.work.items():
            row[f"{name}_ms"] = summarise(times[name]).to_dict()
            row[f"{name}_bytes"] = measure_peak_memory(work, self.device)
        row["extra_bytes"] = measure_peak_memory(contenders.extra, self.device)
        return row


def make_table(section: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Return a terminal table of one section of a record."""
    table = Table(title=f"{section}: relative to plain, median and quartiles")
    columns = ("", "plain ms", "TrAct / plain", "extra alone / plain", "torch_tract / plain")
    for column in (*columns, "extra memory / input"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        ratios = [row.get(f"{key}_over_plain") for key in ("trainact", "extra", "torch_tract")]
        table.add_row(
            row["name"],
            f"{row['plain_ms']['median']:.1f}",
            *("-" if r is None else show_spread(r) for r in ratios),
            f"{row['extra_bytes'] / row['input_bytes']:.2f}",
        )
    return table


def show_spread(spread: dict[str, float]) -> str:
    """Return ``median [low, high]`` in three digits.

    >>> show_spread({"median": 1.0468, "low": 1.01, "high": 1.1, "count": 9})
    '1.047 [1.010, 1.100]'
    """
    return f"{spread['median']:.3f} [{spread['low']:.3f}, {spread['high']:.3f}]"


def _check_sections(text: str) -> list[str]:
    sections = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown or not sections:
        raise TrActValueError(f"--sections {text!r}: use one or more of {', '.join(SECTIONS)}.")
    return sections


def _check_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TrActValueError(f"--device {name!r} cannot be used here: {reason}") from None
    return device


def _write_atomically(path: Path, text: str) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(text)
    os.replace(beside, path)
