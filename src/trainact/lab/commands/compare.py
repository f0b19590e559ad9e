"""``trainact compare``: does TrAct help on my model and my data?"""

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any, get_args

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActValueError
from trainact.lab.commands.dry_run import DRY_RUN, list_runs
from trainact.lab.commands.request import add_experiment_options, parse_settings, read_experiments
from trainact.lab.ranks import count_ranks, is_first_rank
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.experiment import find_experiments
from trainact.lab.recipes.own_loops import make_script_recipe, plan_loop
from trainact.lab.recipes.recipe import Recipe, Tracker
from trainact.lab.running.plan import place_runs
from trainact.lab.schema import parse_positive_numbers, parse_whole_numbers

__all__ = ["add_arguments", "choose_default_arms", "run"]

DEFAULT_RECIPE = "photos"
ARMS = "plain,tract,eigen+tract"
ARMS_WITHOUT_START = "plain,tract"
"""Default arms of a script, which may not pass the images of a start, and of pretrained weights."""
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
    add("--tracker", dest="run.tracker", choices=get_args(Tracker), metavar="NAME",
        help=f"experiment tracker: {', '.join(get_args(Tracker))}")  # fmt: skip
    add("--recipe", default=DEFAULT_RECIPE, metavar="NAME",
        help="recipe or .toml file with all other fields (default: %(default)s)")  # fmt: skip
    add("--script", type=Path, metavar="FILE", help="a training script of your own, which calls "
        "trainact.lab.current_run(); its arguments follow after --")  # fmt: skip
    add("--dry-run", action="store_true", help=DRY_RUN)
    parser.set_defaults(data=None, rest=())
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
            "--arms": {"help": "arms such as plain, tract, lr-3, eigen+tract, eigen+frozen; see "
                       f"docs/lab.md (default: {ARMS}; with --script or pretrained "
                       f"weights: {ARMS_WITHOUT_START})"},
            "--lam": {"default": f"{DEFAULT_LAM:g}"},
            "--out": {"default": Path("trainact-compare")},
        },
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Do the runs that are not done yet, then write and print the comparison."""
    recipes = _plan_script(arguments) if arguments.script else _plan(arguments)
    runs = place_runs(recipes, arguments.out)
    if arguments.dry_run:
        list_runs(runs)
        return 0

    from trainact.lab.comparisons import finish_comparison, split_results
    from trainact.lab.running.display import choose_display
    from trainact.lab.running.runner import run_all
    from trainact.lab.training.own_loop.loop import hash_code

    results = run_all(runs, arguments.jobs, choose_display())
    if not is_first_rank():
        return 0
    records, failures = split_results(results)
    for failure in failures:
        print(f"trainact: {failure}", file=sys.stderr)
    if not records:
        raise TrActValueError("no run was completed, so there is nothing to compare.")
    command = "trainact " + shlex.join(sys.argv[1:])
    code = hash_code(arguments.script) if arguments.script else ""
    finish_comparison(records, arguments.out, command, arguments.jobs, code)
    return 1 if failures or any(record["status"] == "diverged" for record in records) else 0


def choose_default_arms(arguments: argparse.Namespace) -> str:
    """Return the arms if ``--arms`` is not given."""
    if arguments.script:
        return ARMS_WITHOUT_START
    changed = argparse.Namespace(**{**vars(arguments), "arms": ARMS})
    experiments = read_experiments(changed, _read_fields(arguments))
    is_pretrained = any(experiment.recipe.model.is_pretrained for experiment in experiments)
    return ARMS_WITHOUT_START if is_pretrained else ARMS


def _plan(arguments: argparse.Namespace) -> list[Recipe]:
    """Return the recipes of all runs."""
    if arguments.rest:
        raise TrActValueError("arguments after -- are those of a script; give --script FILE.")
    arguments.arms = arguments.arms or choose_default_arms(arguments)
    experiments = read_experiments(arguments, _read_fields(arguments))
    if len(experiments) > 1:
        raise TrActValueError(
            f"--recipe {arguments.recipe} names {', '.join(e.name for e in experiments)}; "
            "choose one of them."
        )
    return dataclasses.replace(experiments[0], networks=()).plan()


def _plan_script(arguments: argparse.Namespace) -> list[Recipe]:
    """Return the recipes of all runs of a script."""
    fields = [*_read_fields(arguments), *parse_settings(arguments.settings)]
    fields += [] if arguments.recipe == DEFAULT_RECIPE else ["--recipe"]
    if fields:
        raise TrActValueError(
            f"{fields[0]} is set, but with --script the script decides on model, data and "
            "optimizer. Give the script its own arguments after --."
        )
    if count_ranks() > 1:
        raise TrActValueError("--script does not work under torchrun: each run has one process.")
    arguments.arms = arguments.arms or choose_default_arms(arguments)
    recipe = make_script_recipe(arguments.script, arguments.rest)
    lams = parse_positive_numbers(arguments.lam, "--lam")
    arms = parse_arms(arguments.arms.split(","), lams)
    budgets = parse_whole_numbers(arguments.epochs, "--epochs")
    return plan_loop(recipe, arms, budgets, parse_whole_numbers(arguments.seeds, "--seeds"))


def _read_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe fields that the command's own options set."""
    options = vars(arguments).items()
    fields = {name: value for name, value in options if "." in name and value is not None}
    if "model.name" in fields:
        fields["model.arguments"] = {}
    settings = parse_settings(arguments.settings)
    if "optimizer.name" in fields and "optimizer.lr" not in {**fields, **settings}:
        name = fields["optimizer.name"]
        if any(e.recipe.optimizer.name != name for e in find_experiments(arguments.recipe)):
            fields["optimizer.lr"] = DEFAULT_LR[name]
    return fields
