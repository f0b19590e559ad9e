"""``trainact bench``: measure what TrAct costs on this machine."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trainact.errors import TrActValueError
from trainact.lab.cost.defaults import BATCH, SECTIONS

if TYPE_CHECKING:
    import torch

    from trainact.lab.cost.bench import Bench

__all__ = ["add_arguments", "run"]

FOLDER = Path("bench")
QUICK_SIZE = 128
"""Size of the large product of ``--calibrate --quick``."""
MODES = ("zoo", "jax", "launches", "calibrate")
DTYPES = ("float32", "bfloat16", "float64")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add = parser.add_argument
    add("--sections", default=",".join(SECTIONS), help="what to measure (default: %(default)s)")
    add("--zoo", action="store_true", help="measure a training step of the 36 networks of the "
        "CIFAR-100 table instead; repeat the command to continue")  # fmt: skip
    add("--jax", action="store_true", help="measure layers and steps compiled by JAX instead, on "
        "its default device")  # fmt: skip
    add("--launches", action="store_true", help="count the operators of TrAct in a backward "
        "instead (on an accelerator, kernel launches); with --out, write them into that record"
    )  # fmt: skip
    add("--model", metavar="NAME", help="with --launches: count for the first layers of this "
        "model, named as in trainact inspect")  # fmt: skip
    add("--calibrate", action="store_true", help="measure the costs that decide between the "
        "methods for xᵀx instead, and what a wrong decision costs here")  # fmt: skip
    add("--only", default="", metavar="TEXT", help="measure only cases whose name contains this")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: %(default)s)")
    add("--dtype", default="float32", choices=DTYPES,
        help="of weights and images (default: %(default)s)")  # fmt: skip
    add("--compile", action="store_true", help="use torch.compile")
    add("--quick", action="store_true", help="fewer rounds and two points per growth curve")
    add("--out", type=Path, metavar="FOLDER",
        help=f"folder of the record and plots (default: {FOLDER})")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the record and the plots, and print the tables."""
    sections = [name.strip() for name in arguments.sections.split(",") if name.strip()]
    if not sections or not set(sections) <= set(SECTIONS):
        raise TrActValueError(
            f"--sections {arguments.sections!r}: use one or more of {', '.join(SECTIONS)}."
        )
    _check_mode(arguments)

    import torch
    from rich.console import Console

    from trainact.lab.cost.bench import Bench

    device, dtype = _check_device(arguments.device), getattr(torch, arguments.dtype)
    bench = (_find_jax_bench() if arguments.jax else Bench)(
        arguments.out or FOLDER,
        Console(),
        device,
        dtype,
        arguments.compile,
        arguments.quick,
        arguments.only,
    )
    if arguments.launches:
        _count_launches(arguments, bench)
    elif arguments.calibrate:
        _calibrate(bench)
    elif arguments.zoo:
        bench.measure_zoo()
    else:
        bench.measure(sections)
    return 0


def _check_mode(arguments: argparse.Namespace) -> None:
    modes = [f"--{name}" for name in MODES if getattr(arguments, name)]
    if len(modes) > 1:
        raise TrActValueError(f"{' and '.join(modes)} do different things: choose one of them.")
    if arguments.jax and (arguments.compile or arguments.device != "cpu"):
        raise TrActValueError(
            "--jax always compiles, and runs on JAX's default device: remove --compile and "
            "--device (JAX_PLATFORMS chooses the device)."
        )
    if arguments.jax and arguments.dtype == "float64":
        raise TrActValueError("--jax measures float32 or bfloat16: choose one of them as --dtype.")
    if arguments.model is not None and not arguments.launches:
        raise TrActValueError("--model belongs to --launches: add --launches.")
    if arguments.out is not None and (arguments.calibrate or arguments.model is not None):
        option = "--calibrate" if arguments.calibrate else "--launches --model"
        raise TrActValueError(f"{option} only prints and writes no record: remove --out.")


def _find_jax_bench() -> "type[Bench]":
    try:
        from trainact.lab.cost.jax_bench import JaxBench
    except ModuleNotFoundError as error:
        raise TrActValueError(
            f"--jax needs {error.name}, which is not installed: run pip install "
            "'trainact[lab,jax]'."
        ) from None
    return JaxBench


def _count_launches(arguments: argparse.Namespace, bench: "Bench") -> None:
    from trainact.lab.cost.launches import (
        count_model_launches,
        count_stem_launches,
        make_launch_table,
    )
    from trainact.lab.models.zoos import build_meta_model

    if arguments.model is not None:
        rows = count_model_launches(build_meta_model(arguments.model).model, BATCH)
        bench.console.print(f"{arguments.model} at batch {BATCH}")
    elif arguments.out is not None:
        rows = bench.count_launches()
    else:
        rows = count_stem_launches(bench.only)
    bench.console.print(make_launch_table(rows))
    bench.console.print(
        "The path of an accelerator is counted on the meta device. It was never run on CUDA.",
        soft_wrap=True,
    )


def _calibrate(bench: "Bench") -> None:
    from trainact.lab.cost import calibration
    from trainact.lab.cost.cases import LAYERS

    cases = [case for case in LAYERS if bench.only.lower() in case.name.lower()]
    size = QUICK_SIZE if bench.quick else calibration.SIZE
    costs = calibration.calibrate(bench.device, bench.dtype, size)
    bench.console.print(calibration.make_cost_table(costs, bench.device))
    choices = calibration.compare_choices(costs, bench.device, bench.dtype, cases)
    bench.console.print(calibration.make_choice_table(choices))


def _check_device(name: str) -> "torch.device":
    import torch

    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TrActValueError(f"--device {name!r} cannot be used here: {reason}") from None
    return device
