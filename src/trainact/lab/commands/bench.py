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
    parser.add_argument(
        "--sections",
        default=",".join(SECTIONS),
        help="what to measure: any of layer,step,growth (default all)",
    )
    parser.add_argument(
        "--zoo",
        action="store_true",
        help="measure a training step of the 36 networks of the CIFAR-100 table instead; "
        "repeat the command to continue",
    )
    parser.add_argument("--only", default="", help="measure only cases whose name contains this")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    parser.add_argument("--dtype", default="float32", choices=list(DTYPES))
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and two points per growth curve"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench"),
        help="folder of the record and plots (default bench)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the record and the plots, and print the tables."""
    sections = _check_sections(arguments.sections)
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
