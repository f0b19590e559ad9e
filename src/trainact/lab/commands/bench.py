"""``trainact bench``: measure what TrAct costs on this machine."""

import argparse
from pathlib import Path

import torch
from rich.console import Console

from trainact.errors import TrActValueError
from trainact.lab.cost.bench import SECTIONS, Bench

__all__ = ["add_arguments", "run"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add = parser.add_argument
    add("--sections", default=",".join(SECTIONS), help="what to measure (default: %(default)s)")
    add("--zoo", action="store_true", help="measure a training step of the 36 networks of the "
        "CIFAR-100 table instead; repeat the command to continue")  # fmt: skip
    add("--only", default="", metavar="TEXT", help="measure only cases whose name contains this")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: %(default)s)")
    add("--dtype", default="float32", choices=list(DTYPES),
        help="of weights and images (default: %(default)s)")  # fmt: skip
    add("--compile", action="store_true", help="use torch.compile")
    add("--quick", action="store_true", help="fewer rounds and two points per growth curve")
    add("--out", type=Path, default=Path("bench"), metavar="FOLDER",
        help="folder of the record and plots (default: %(default)s)")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the record and the plots, and print the tables."""
    sections = [name.strip() for name in arguments.sections.split(",") if name.strip()]
    if not sections or not set(sections) <= set(SECTIONS):
        raise TrActValueError(
            f"--sections {arguments.sections!r}: use one or more of {', '.join(SECTIONS)}."
        )
    bench = Bench(
        arguments.out,
        Console(),
        _check_device(arguments.device),
        DTYPES[arguments.dtype],
        arguments.compile,
        arguments.quick,
        arguments.only,
    )
    if arguments.zoo:
        bench.measure_zoo()
    else:
        bench.measure(sections)
    return 0


def _check_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TrActValueError(f"--device {name!r} cannot be used here: {reason}") from None
    return device
