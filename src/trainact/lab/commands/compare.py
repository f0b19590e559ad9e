"""``trainact compare``: does TrAct help on my model and my data?"""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActValueError
from trainact.lab.commands.request import add_experiment_options, parse_settings, read_experiments
from trainact.lab.ranks import is_first_rank
from trainact.lab.recipes.recipe import name_run
from trainact.lab.text import count

if TYPE_CHECKING:
    from trainact.lab.report.comparison_report import Comparison
    from trainact.lab.running.runner import RunResult

__all__ = ["add_arguments", "run"]

DEFAULT_LR = {"sgd": 0.08, "adam": 1e-3, "adamw": 1e-3, "lamb": 4e-3}
"""Learning rates if the command line names an optimizer and no learning rate."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments; ``dest`` is the field of the recipe that an option sets."""
    add = parser.add_argument
    add("--model", dest="model.name", metavar="NAME",
        help="lab:NAME, timm:NAME, torchvision:NAME or package.module:function")  # fmt: skip
    add("--image-size", dest="data.image_size", type=int, metavar="PIXELS",
        help="resize images to this side length")  # fmt: skip
    add("--optimizer", dest="optimizer.name", choices=list(DEFAULT_LR),
        help="optimizer of every arm")  # fmt: skip
    add("--lr", dest="optimizer.lr", type=float, metavar="LR", help="learning rate of every arm")
    add("--batch-size", dest="data.batch_size", type=int, metavar="N",
        help="images per step, over all ranks")  # fmt: skip
    add("--device", dest="run.device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps")
    add("--precision", dest="run.precision", choices=["no", "bf16", "fp16"],
        help="automatic mixed precision")  # fmt: skip
    add("--workers", dest="data.workers", type=int, metavar="N",
        help="processes that load images from a stream")  # fmt: skip
    add("--tracker", dest="run.tracker", choices=["none", "tensorboard", "trackio", "wandb"],
        help="experiment tracker")  # fmt: skip
    add("--recipe", default="photos", metavar="NAME",
        help="recipe or .toml file with all other fields (default: %(default)s)")  # fmt: skip
    parser.set_defaults(data=None)
    add_experiment_options(
        parser,
        refused={
            "--networks": "it trains one network; choose it with --model",
            "--tuned": "use 'trainact run RECIPE --tuned FILE', or give --lr",
            "--smoke": "use 'trainact run RECIPE --smoke', or a small --epochs",
        },
        changed={
            "--data": {"dest": "data.name", "metavar": "NAME", "help": "photos, cifar10, cifar100, "
                       "a folder of images or parquet files, an .npz file, or a hub id"},
            "--epochs": {"default": "1,2",
                         "help": "budgets, each with its full schedule (default: %(default)s)"},
            "--seeds": {"default": "0-2",
                        "help": "seeds, such as 0-4 or 0,1,2 (default: %(default)s)"},
            "--arms": {"default": "plain,tract",
                       "help": "arms such as plain, tract, lr=3, eigen+tract, eigen+frozen; see "
                       "docs/lab.md (default: %(default)s)"},
            "--lam": {"default": f"{DEFAULT_LAM:g}"},
            "--out": {"default": Path("trainact-compare")},
        },
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Do the runs that are not done yet, then write and print the comparison."""
    experiments = read_experiments(arguments, _read_fields(arguments))
    if len(experiments) > 1:
        raise TrActValueError(
            f"--recipe {arguments.recipe} names {', '.join(e.name for e in experiments)}; "
            "choose one of them."
        )
    recipes = dataclasses.replace(experiments[0], networks=()).plan()

    from trainact.lab.running.display import choose_display
    from trainact.lab.running.plan import place_runs
    from trainact.lab.running.runner import run_all

    display = choose_display()
    results = run_all(place_runs(recipes, arguments.out), arguments.jobs, display)
    return _finish(results, arguments) if is_first_rank() else 0


def _read_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe fields that the command's own options set."""
    options = vars(arguments).items()
    fields = {name: value for name, value in options if "." in name and value is not None}
    if "model.name" in fields:
        fields["model.arguments"] = {}
    settings = parse_settings(arguments.settings)
    if "optimizer.name" in fields and "optimizer.lr" not in {**fields, **settings}:
        fields["optimizer.lr"] = DEFAULT_LR[fields["optimizer.name"]]
    return fields


def _finish(results: "Sequence[RunResult]", arguments: argparse.Namespace) -> int:
    """Write the pages and print the comparison; return 1 if a run failed or diverged."""
    from trainact.lab.report.comparison_report import write_comparison

    records = [result.record for result in results if result.record is not None]
    failed = [result for result in results if result.failure is not None]
    for result in failed:
        print(f"trainact: {name_run(result.run.recipe)}: {result.failure}", file=sys.stderr)
    if not records:
        raise TrActValueError("no run was completed, so there is nothing to compare.")
    command = "trainact " + shlex.join(sys.argv[1:])
    _print(write_comparison(records, arguments.out, command, arguments.jobs))
    diverged = [record for record in records if record["status"] == "diverged"]
    return 1 if failed or diverged else 0


def _print(comparison: "Comparison") -> None:
    """Print the table, the verdicts, the speed-ups and the path of the page."""
    from trainact.lab.report.tables import print_accuracy
    from trainact.lab.report.wording import describe_results, describe_speed_up, describe_timing

    answers = comparison.answers
    print_accuracy(answers)
    for budget, verdict in describe_results(answers):
        print(f"{count(budget, 'epoch')}: {verdict}")
    for speed_up in answers.speed_ups:
        print(describe_speed_up(speed_up))
    for message in answers.missing:
        print(message)
    if answers.jobs > 1:
        print(describe_timing(answers.jobs))
    print(f"Page with curves, cost and all runs: {comparison.folder / 'comparison.html'}")
