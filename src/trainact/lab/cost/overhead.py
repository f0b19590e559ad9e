"""``trainact bench --zoo``: what TrAct adds to a step of each network of the CIFAR-100 table.

Its own work, measured alone, takes turns with the plain step; a row is written when its network is
done, so that a measurement that was cut off goes on with the same command. Stochastic depth leaves
out other branches in every step, so its plain steps differ in length by design.
"""

import functools
import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trainact.errors import TrActValueError
from trainact.lab.cost.cases import NetworkContest
from trainact.lab.cost.timing import compare_times, summarise
from trainact.lab.environment import count_threads, describe_environment
from trainact.lab.files import write_atomically
from trainact.lab.models.networks import NETWORKS, build_network

__all__ = ["FILE", "TABLE", "measure_zoo", "read_zoo", "render_zoo"]

FILE = "zoo.json"
OTHERS = ("resnet18-tract", "vit-cifar", "resnet18-imagenet", "deit3-small", "deit3-base")
TABLE = [name for name in NETWORKS if name not in OTHERS]
BATCH, PAIRS = 8, 3
MACHINE = ("processor", "accelerator", "device", "threads", "packages")
"""What the rows of one record share."""


def measure_zoo(
    names: Sequence[str], folder: Path, device: torch.device, dtype: torch.dtype, console: Console
) -> dict[str, Any]:
    """Measure the networks that have no row yet, write each when it is done; return the record.

    Raises:
        TrActValueError: the record in the folder is of another machine or dtype.
    """
    path = folder / FILE
    record = read_zoo(path) or {
        "kind": "bench-zoo",
        "environment": describe_environment(str(device)),
        "dtype": str(dtype).removeprefix("torch."),
        "batch": BATCH,
        "networks": [],
    }
    _check_machine(record, device, dtype, path)
    done = {row["name"] for row in record["networks"]}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("zoo", total=len(names))
        for name in names:
            progress.update(task, description=f"zoo: {name}")
            if not console.is_terminal:
                console.print(f"zoo: {name}{', done before' if name in done else ''}")
            if name not in done:
                record["networks"].append(_measure(name, device, dtype))
                record["networks"].sort(key=lambda row: TABLE.index(row["name"]))
                write_atomically(path, f"{json.dumps(record, indent=1)}\n".encode())
            progress.advance(task)
    return record


def _measure(name: str, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    make = functools.partial(build_network, name, 100)
    contenders = NetworkContest(name, make, (BATCH, 3, 32, 32)).set_up(device, dtype, False)
    work = {"plain": contenders.work["plain"], "extra": contenders.extra}
    times = compare_times(work, PAIRS, device)
    ratios = [extra / plain for extra, plain in zip(times["extra"], times["plain"], strict=True)]
    del contenders, work
    gc.collect()
    made = describe_environment(str(device))
    return {
        "name": name,
        "parameters": NETWORKS[name].parameters,
        "plain_ms": summarise(times["plain"]).to_dict(),
        "extra_ms": summarise(times["extra"]).to_dict(),
        "extra_over_plain": summarise(ratios).to_dict(),
        **{key: made[key] for key in ("date", "commit", "clean")},
    }


def read_zoo(path: Path) -> dict[str, Any] | None:
    """Return the record of a file, or None where there is none.

    Raises:
        TrActValueError: the file is something else.
    """
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrActValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("kind") != "bench-zoo":
        raise TrActValueError(f"{path} is not a record of trainact bench --zoo.")
    return record


def _check_machine(
    record: dict[str, Any], device: torch.device, dtype: torch.dtype, path: Path
) -> None:
    here = describe_environment(str(device)) | {"dtype": str(dtype).removeprefix("torch.")}
    there = record["environment"] | {"dtype": record["dtype"]}
    differing = [key for key in (*MACHINE, "dtype") if here[key] != there[key]]
    if differing:
        told = ", ".join(f"{key} was {there[key]} and is {here[key]}" for key in differing)
        raise TrActValueError(
            f"{path} was begun elsewhere ({told}); rows of one record must share a machine. Remove "
            "it, or choose another --out."
        )


def render_zoo(record: dict[str, Any] | None) -> str:
    """Return the record as a Markdown table with a sentence on what it was made with."""
    if record is None or not record["networks"]:
        return "There is no record yet; `trainact bench --zoo --out results/bench` makes it."
    rows = record["networks"]
    made = record["environment"]
    hardware = made["accelerator"] or f"{made['processor']}, {count_threads(made)}"
    commits = sorted({str(row["commit"])[:10] + "+" * (row["clean"] is False) for row in rows})
    shares = sorted(row["extra_over_plain"]["median"] for row in rows)
    lines = [
        f"{len(rows)} of the {len(TABLE)} networks: TrAct's own work is between "
        f"{100 * shares[0]:.2f} % and {100 * shares[-1]:.2f} % of a plain step. Medians "
        f"[quartiles] of {rows[0]['plain_ms']['count']:.0f} pairs at batch {record['batch']}; "
        f"{hardware}, {record['dtype']}, torch {made['packages']['torch']}, at commit "
        f"{', '.join(commits)}, {rows[-1]['date'][:10]}.",
        "",
        "| network | parameters | plain step, ms | extra work / plain step |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row in rows:
        share = row["extra_over_plain"]
        percents = [f"{100 * share[key]:.2f}" for key in ("median", "low", "high")]
        lines.append(
            f"| {row['name']} | {row['parameters']:,} | {row['plain_ms']['median']:.0f} | "
            f"{percents[0]} % [{percents[1]}, {percents[2]}] |"
        )
    return "\n".join(lines)
