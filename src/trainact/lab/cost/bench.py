"""The measurements of ``trainact bench``, their records, tables and plots.

Plain training, TrAct and the authors' package take turns in one process; results are medians of
paired ratios with their 95 % confidence intervals. Whole steps are too noisy on most machines to
resolve one percent, so their main number is TrAct's own work, measured alone, divided by the plain
step. Each contest also runs plain against plain; if the interval of that ratio is too wide, more
rounds follow, and in the end the contest is marked noisy.
"""

import functools
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trainact.errors import TrActValueError
from trainact.lab.cost.cases import GROWTH, LAYERS, Case, NetworkCase, choose_networks
from trainact.lab.cost.launches import update_launches
from trainact.lab.cost.timing import (
    CONFIDENCE,
    CONTROL,
    REPEATS,
    Contest,
    Work,
    compare_with_control,
    count_kernels,
    divide,
    measure_peak_memory,
    summarise,
)
from trainact.lab.environment import describe_environment, describe_hardware
from trainact.lab.files import write_atomically
from trainact.lab.models.networks import NETWORKS as MODELS
from trainact.lab.models.networks import build_network
from trainact.lab.paper.tables import list_networks

__all__ = [
    "JAX_FILE",
    "TABLE_NETWORKS",
    "ZOO_FILE",
    "Bench",
    "Row",
    "describe_medians",
    "draw_growth",
    "is_same_setup",
    "make_table",
    "read_bench",
    "read_jax_bench",
    "read_zoo",
    "render_zoo",
    "write_record",
]

ROUNDS = {"layer": 61, "step": 15, "growth": 7, "zoo": 3}
QUICK_ROUNDS = {"layer": 5, "step": 3, "growth": 3, "zoo": 3}
FILE, JAX_FILE, ZOO_FILE = "bench.json", "jax.json", "zoo.json"
ZOO_BATCH = 8
MACHINE = ("processor", "accelerator", "device", "threads", "packages")
"""Fields of the environment that all rows of a zoo record share."""
TABLE_NETWORKS = list_networks()
"""The 36 networks of the paper's CIFAR-100 table."""

INTERVAL = f"{CONFIDENCE:.0%} intervals".replace("%", " %")
"""What ``low`` and ``high`` of a median are."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What to measure, and where the records go."""

    folder: Path
    console: Console
    device: torch.device
    dtype: torch.dtype = torch.float32
    compiled: bool = False
    quick: bool = False  # fewer rounds, no repeats, and two points per growth curve
    only: str = ""  # skip cases whose name does not contain this

    def measure(self, sections: Sequence[str]) -> dict[str, Any]:
        """Measure the sections, write the record after each case, and draw the growth plots.

        A record of the same code on the same machine is continued: cases that it has are skipped.
        Any other record is replaced.

        Raises:
            TrActValueError: the existing record is damaged, or another kind of record.
        """
        path = self.folder / FILE
        here = {
            **self._begin_record("bench"),
            "compiled": self.compiled,
            "quick": self.quick,
        }
        record = read_bench(path)
        if record is None or not is_same_setup(record, here):
            record = here
        cases: Sequence[Case]
        for section in sections:
            if section == "growth":
                growth = record.setdefault(section, {})
                for size, sweep in GROWTH.items():
                    named = {case.name: value for value, case in sweep.items()}
                    cases = list(sweep.values())[: 2 if self.quick else None]
                    rows = growth.setdefault(size, [])
                    for row in self._measure_missing(section, cases, self._measure_size, rows):
                        rows.append({size: named[row["name"]], **row})
                        write_record(record, path)
            else:
                cases = LAYERS if section == "layer" else choose_networks(self.device)
                rows = record.setdefault(section, [])
                for row in self._measure_missing(section, cases, self._measure_ratios, rows):
                    rows.append(row)
                    write_record(record, path)
                self.console.print(make_table(section, rows))
            if section == "layer":
                update_launches(record, self.only)
            write_record(record, path)
        if any(record.get("growth", {}).values()):
            for picture in draw_growth(record, self.folder):
                self.console.print(f"wrote {picture}")
        self.console.print(f"wrote {path}")
        return record

    def measure_zoo(self) -> dict[str, Any]:
        """Measure a training step of each network of the CIFAR-100 table that has no row yet.

        Every row is written at once, so the same command continues an interrupted measurement.

        Raises:
            TrActValueError: the existing record is from another machine or dtype.
        """
        path = self.folder / ZOO_FILE
        here = self._begin_record("bench-zoo")
        record = read_zoo(path) or {**here, "batch": ZOO_BATCH, "networks": []}
        _check_machine(record, here, path)
        rows: list[Row] = record["networks"]
        cases = [
            NetworkCase(name, functools.partial(build_network, name, 100), (ZOO_BATCH, 3, 32, 32))
            for name in TABLE_NETWORKS
        ]
        for row in self._measure_missing("zoo", cases, self._measure_zoo_network, rows):
            rows.append(row)
            rows.sort(key=lambda row: TABLE_NETWORKS.index(row["name"]))
            write_record(record, path)
        self.console.print(render_zoo(record), markup=False, highlight=False)
        self.console.print(f"wrote {path}")
        return record

    def count_launches(self) -> list[Row]:
        """Count the operators of the stems, and write them into the record; measure nothing.

        All other sections of an existing record, and its other stems, stay as they are.

        Raises:
            TrActValueError: the existing record is damaged, or another kind of record, or has other
                stems that were counted with another version of torch.
        """
        path = self.folder / FILE
        record = read_bench(path) or self._begin_record("bench")
        update_launches(record, self.only)
        write_record(record, path)
        self.console.print(f"wrote {path}")
        return [row for row in record["launches"]["stems"] if self._selects(row["name"])]

    def _compare(self, work: dict[str, Work], rounds: int, advance: Callable[[], None]) -> Contest:
        return compare_with_control(work, rounds, advance, 0 if self.quick else REPEATS)

    def _begin_record(self, kind: str) -> dict[str, Any]:
        environment = describe_environment(str(self.device))
        dtype = str(self.dtype).removeprefix("torch.")
        return {
            "kind": kind,
            "environment": environment,
            "dtype": dtype,
            "interval": INTERVAL,
        }

    def _selects(self, name: str) -> bool:
        return self.only.lower() in name.lower()

    def _measure_missing(
        self,
        section: str,
        cases: Sequence[Case],
        measure: Callable[[Case, int, Callable[[], None]], Row],
        rows: Sequence[Row],
    ) -> Iterator[Row]:
        """Yield the row of each selected case without one, with a progress bar over all rounds.

        A case that does not fit into the memory of the GPU is left out, with a message.
        """
        rounds = (QUICK_ROUNDS if self.quick else ROUNDS)[section]
        measured = {row["name"] for row in rows}
        selected = [case for case in cases if self._selects(case.name)]
        done = [case.name for case in selected if case.name in measured]
        if done:
            self.console.print(f"already measured: {', '.join(done)}")
        chosen = [case for case in selected if case.name not in measured]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=self.console) as progress:
            task = progress.add_task(section, total=rounds * len(chosen))
            for case in chosen:
                progress.update(task, description=f"{section}: {case.name}")
                if not self.console.is_terminal:
                    self.console.print(f"{section}: {case.name}")
                try:
                    row = measure(case, rounds, lambda: progress.advance(task))
                except torch.cuda.OutOfMemoryError:
                    row = None
                if row is not None:
                    yield row
                    continue
                gc.collect()
                torch.cuda.empty_cache()
                remedy = "" if self.dtype == torch.bfloat16 else "; try --dtype bfloat16"
                self.console.print(
                    f"{section}: {case.name} does not fit into the memory of the GPU and is left "
                    f"out{remedy}"
                )

    def _measure_ratios(self, case: Case, rounds: int, advance: Callable[[], None]) -> Row:
        """Return times relative to plain, and the memory and kernels of TrAct's own work."""
        work = case.set_up(self.device, self.dtype, self.compiled)
        return self._time_case(case, work, rounds, advance) | {
            "extra_bytes": measure_peak_memory(work.extra, self.device),
            "input_bytes": work.input_bytes,
            "extra_kernels": count_kernels(work.extra, self.device),
        }

    def _time_case(self, case: Any, work: Any, rounds: int, advance: Callable[[], None]) -> Row:
        """Return the times of the variants and of TrAct's own work, relative to plain."""
        contest = self._compare(work.variants | {"extra": work.extra}, rounds, advance)
        times = dict(contest.times)
        plain = times.pop("plain")
        return {
            "name": case.name,
            "shape": list(case.shape),
            "plain_ms": summarise(plain),
            "extra_ms": summarise(times["extra"]),
            **contest.to_record(),
            **{f"{name}_over_plain": divide(t, plain) for name, t in times.items()},
        }

    def _measure_size(self, case: Case, rounds: int, advance: Callable[[], None]) -> Row:
        """Return the time and the peak memory of each variant."""
        work = case.set_up(self.device, self.dtype, self.compiled)
        contest = self._compare(work.variants, rounds, advance)
        row: Row = {"name": case.name, "input_bytes": work.input_bytes, **contest.to_record()}
        for name, run in work.variants.items():
            row[f"{name}_ms"] = summarise(contest.times[name])
            row[f"{name}_bytes"] = measure_peak_memory(run, self.device)
        row["extra_bytes"] = measure_peak_memory(work.extra, self.device)
        return row

    def _measure_zoo_network(self, case: Case, rounds: int, advance: Callable[[], None]) -> Row:
        """Return the plain step's time and TrAct's own work relative to it."""
        gc.collect()
        work = case.set_up(self.device, self.dtype, compiled=False)
        pair = {"plain": work.variants["plain"], "extra": work.extra}
        contest = self._compare(pair, rounds, advance)
        times = contest.times
        environment = describe_environment(str(self.device))
        return {
            "name": case.name,
            "parameters": MODELS[case.name].parameters,
            "plain_ms": summarise(times["plain"]),
            "extra_ms": summarise(times["extra"]),
            "extra_over_plain": divide(times["extra"], times["plain"]),
            **contest.to_record(),
            **{key: environment[key] for key in ("date", "commit", "clean")},
        }


def describe_medians(record: dict[str, Any]) -> str:
    """Return what the numbers of a record are; records without ``interval`` hold quartiles.

    >>> describe_medians({"interval": "95 % intervals"})
    'Medians [95 % intervals]'
    """
    return f"Medians [{record.get('interval', 'quartiles')}]"


def read_bench(path: Path) -> dict[str, Any] | None:
    """Return the record of ``trainact bench`` in a file, or None where there is no file.

    Raises:
        TrActValueError: the file is damaged, or another kind of record.
    """
    return _read(path, "bench", "trainact bench")


def read_zoo(path: Path) -> dict[str, Any] | None:
    """Return the record of ``trainact bench --zoo``; otherwise like :func:`read_bench`."""
    return _read(path, "bench-zoo", "trainact bench --zoo")


def read_jax_bench(path: Path) -> dict[str, Any] | None:
    """Return the record of ``trainact bench --jax``; otherwise like :func:`read_bench`."""
    return _read(path, "bench-jax", "trainact bench --jax")


def _read(path: Path, kind: str, command: str) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TrActValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("kind") != kind or not _has_rows(record):
        raise TrActValueError(f"{path} is not a record of {command}.")
    return record


def _has_rows(record: dict[str, Any]) -> bool:
    """Return whether a record has an environment, and rows with names in its sections."""
    growth = record.get("growth", {})
    if not isinstance(growth, dict) or not isinstance(record.get("environment"), dict):
        return False
    sections = [*(record.get(key, []) for key in ("layer", "step", "networks")), *growth.values()]
    return all(
        isinstance(rows, list)
        and all(isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows)
        for rows in sections
    )


def is_same_setup(record: dict[str, Any], here: dict[str, Any]) -> bool:
    """Return whether a record was made with the same code, settings and machine."""
    before, now = record["environment"], here["environment"]
    settings = ("dtype", "interval", "compiled", "quick")
    return (
        all(before.get(key) == now[key] for key in (*MACHINE, "commit", "clean"))
        and all(record.get(key) == here[key] for key in settings)
        and now["clean"] is not False
    )


def _check_machine(record: dict[str, Any], here: dict[str, Any], path: Path) -> None:
    before, now = (one["environment"] | {"dtype": one["dtype"]} for one in (record, here))
    differences = ", ".join(
        f"{key} was {before.get(key)} and is {now[key]}"
        for key in (*MACHINE, "dtype")
        if now[key] != before.get(key)
    )
    if differences:
        raise TrActValueError(
            f"{path} is from another setup ({differences}). All rows of a record must come from "
            "one machine: remove the file, or choose another --out."
        )


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write a record at once, so that an interruption leaves the old or the new one."""
    write_atomically(path, f"{json.dumps(record, indent=1)}\n".encode())


def make_table(section: str, rows: Sequence[Row]) -> Table:
    """Return one section of a record as a table for the terminal."""
    table = Table(title=f"{section}: relative to plain, median and its 95 % interval")
    columns = ("", "plain ms", "plain / plain", "TrAct / plain", "extra alone / plain")
    for column in (*columns, "torch_tract / plain", "extra memory / input"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        noisy = row.get("noisy", False)
        table.add_row(
            row["name"],
            f"{row['plain_ms']['median']:.1f}",
            _format_spread(row.get(f"{CONTROL}_over_plain")),
            _format_spread(row.get("trainact_over_plain"), noisy=noisy),
            _format_spread(row.get("extra_over_plain")),
            _format_spread(row.get("torch_tract_over_plain"), noisy=noisy),
            f"{row['extra_bytes'] / row['input_bytes']:.2f}",
        )
    return table


def _format_spread(spread: dict[str, float] | None, *, noisy: bool = False) -> str:
    if spread is None:
        return "-"
    if noisy:
        return "noisy"
    return f"{spread['median']:.3f} [{spread['low']:.3f}, {spread['high']:.3f}]"


def render_zoo(record: dict[str, Any] | None) -> str:
    """Return a zoo record as a Markdown table, below a sentence on hardware and versions."""
    if record is None or not record["networks"]:
        return "Not measured yet: run `trainact bench --zoo --out results/bench`."
    rows = record["networks"]
    environment = record["environment"]
    commits = sorted({str(row["commit"])[:10] + "+" * (row["clean"] is False) for row in rows})
    shares = sorted(row["extra_over_plain"]["median"] for row in rows)
    lines = [
        f"{len(rows)} of the {len(TABLE_NETWORKS)} networks: TrAct's own work is between "
        f"{100 * shares[0]:.2f} % and {100 * shares[-1]:.2f} % of a plain step. "
        f"{describe_medians(record)} of "
        f"{rows[0]['plain_ms']['count']:.0f} pairs at batch {record['batch']}; "
        f"{describe_hardware(environment)}, {record['dtype']}, torch "
        f"{environment['packages']['torch']}, at commit {', '.join(commits)}, "
        f"{rows[-1]['date'][:10]}.",
        "",
        "| network | parameters | plain step, ms | extra work / plain step |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row in rows:
        median, low, high = (100 * row["extra_over_plain"][k] for k in ("median", "low", "high"))
        share = f"{median:.2f} % [{low:.2f}, {high:.2f}]"
        lines.append(
            f"| {row['name']} | {row['parameters']:,} | {row['plain_ms']['median']:.0f} | {share} |"
        )
    return "\n".join(lines)


LINES = {
    "plain": {"color": "0.45", "linestyle": "--", "marker": "o", "label": "plain layer"},
    "trainact": {"color": "tab:blue", "linestyle": "-", "marker": "o", "label": "trainact"},
    "torch_tract": {"color": "tab:orange", "linestyle": "-", "marker": "s", "label": "torch_tract"},
}
HOLLOW = {"linestyle": "", "markerfacecolor": "white", "label": None}
"""What marks a noisy measurement."""

AXES = {
    "batch": "images in the batch (7x7 stride 2 at 224 pixels)",
    "pixels": "pixels of a side (7x7 stride 2, batch 8)",
    "kernel": "kernel size (stride 2 at 112 pixels, batch 8)",
}


def draw_growth(record: dict[str, Any], folder: Path) -> list[Path]:
    """Draw time and peak memory of forward and backward against each size, log-log.

    In the plot of times, the points of noisy measurements are hollow.
    """
    from matplotlib.figure import Figure

    growth = {size: rows for size, rows in record["growth"].items() if rows}
    environment = record["environment"]
    quantities: dict[str, tuple[str, Callable[[Row, str], float]]] = {
        "ms": ("milliseconds", lambda row, name: row[f"{name}_ms"]["median"]),
        "memory": ("peak MB", lambda row, name: row[f"{name}_bytes"] / 1e6),
    }
    paths = []
    for key, (unit, read) in quantities.items():
        figure = Figure(figsize=(4.6 * len(growth), 3.8))
        axes = figure.subplots(1, len(growth), squeeze=False)[0]
        for axis, (size, rows) in zip(axes, growth.items(), strict=True):
            for name, style in LINES.items():
                given = [row for row in rows if f"{name}_ms" in row]
                noisy = [row for row in given if key == "ms" and row.get("noisy")]
                for some, changes in ((given, {}), (noisy, HOLLOW)):
                    if some:
                        points = [(row[size], read(row, name)) for row in some]
                        axis.plot(*zip(*points, strict=True), **style | changes)
            axis.set(xscale="log", yscale="log", xlabel=AXES[size])
            ticks = [row[size] for row in rows]
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        axes[0].set_ylabel(f"{unit}, forward + backward")
        axes[0].legend(frameon=False)
        title = f"{describe_hardware(environment)}, torch {environment['packages']['torch']}"
        if key == "ms" and any(row.get("noisy") for rows in growth.values() for row in rows):
            title += "; hollow points: noisy"
        figure.suptitle(title, fontsize=9)
        figure.tight_layout()
        path = folder / f"growth-{key}.png"
        figure.savefig(path, dpi=110)
        paths.append(path)
    return paths
