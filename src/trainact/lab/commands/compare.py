"""``trainact compare``: does TrAct help on my model and my data?"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from trainact.errors import TrActValueError
from trainact.lab.commands.settings import parse_settings
from trainact.lab.ranks import is_first_rank
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.experiment import Experiment, find_experiment
from trainact.lab.recipes.names import name_run, parse_numbers, parse_whole_numbers
from trainact.lab.recipes.recipe import Recipe, change_recipe
from trainact.lab.report.comparison import Comparison, write_comparison
from trainact.lab.report.tables import print_final_table
from trainact.lab.report.wording import caution_about_time, give_verdicts, tell_speed_up
from trainact.lab.running.display import Silence, choose_display
from trainact.lab.running.plan import place_runs
from trainact.lab.running.runner import RunResult, run_all
from trainact.options import DEFAULT_LAM

__all__ = ["add_arguments", "run"]

RATES = {"sgd": 0.08, "adam": 1e-3, "adamw": 1e-3, "lamb": 4e-3}
"""Learning rates where the command line names an optimizer and no rate."""

FIELDS = {
    "model": "model.name",
    "data": "data.name",
    "image_size": "data.image_size",
    "optimizer": "optimizer.name",
    "lr": "optimizer.lr",
    "batch_size": "data.batch_size",
    "device": "run.device",
    "precision": "run.precision",
    "workers": "data.workers",
    "tracker": "run.tracker",
}
"""Options that are short for a field of the recipe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    add = parser.add_argument
    add("--model", help="lab:NAME, timm:NAME, torchvision:NAME or package.module:function")
    add("--data", help="photos, cifar10, cifar100, a folder of images or of parquet files, an .npz "
        "file, or a hub id")  # fmt: skip
    add("--image-size", type=int, metavar="PIXELS", help="side that images are brought to")
    add("--epochs", default="1,2", metavar="N[,N...]",
        help="budgets, each with its own full schedule: 5,10,20 (default 1,2)")  # fmt: skip
    add("--seeds", default="0-2", help="0-4 or 0,1,2 (default 0-2)")
    add(
        "--arms", default="plain,tract", help="of plain, tract, lr, lr=FACTOR (default plain,tract)"
    )
    add(
        "--lam",
        default=f"{DEFAULT_LAM:g}",
        metavar="λ[,λ...]",
        help="one tract arm for each (default %(default)s)",
    )
    add("--optimizer", choices=list(RATES))
    add("--lr", type=float, help="learning rate; the same for every arm")
    add("--batch-size", type=int, help="images of a step, over all ranks")
    add("--device", help="auto, cpu, cuda, cuda:1, mps")
    add("--precision", choices=["no", "bf16", "fp16"])
    add("--workers", type=int, help="processes that read images, for data that streams")
    add("--jobs", type=int, default=1, help="runs side by side (default 1)")
    add("--tracker", choices=["none", "tensorboard", "trackio", "wandb"])
    add("--recipe", default="photos", help="a recipe, or a file with one, to start from")
    add("--out", type=Path, default=Path("trainact-compare"), help="folder (default %(default)s)")
    add("settings", nargs="*", metavar="TABLE.FIELD=VALUE", help="any other field of the recipe")


def run(arguments: argparse.Namespace) -> int:
    """Do the runs that are not done yet, then write and print the answers."""
    lams = parse_numbers(arguments.lam, "--lam")
    experiment = Experiment(
        name="compare",
        title="compare",
        recipe=_resolve(arguments),
        arms=tuple(parse_arms(arguments.arms.split(","), lams)),
        budgets=tuple(parse_whole_numbers(arguments.epochs, "--epochs")),
        seeds=tuple(parse_whole_numbers(arguments.seeds, "--seeds")),
    )
    display = choose_display() if is_first_rank() else Silence()
    outcomes = run_all(place_runs(experiment.plan(), arguments.out), arguments.jobs, display)
    return _answer(outcomes, arguments) if is_first_rank() else 0


def _resolve(arguments: argparse.Namespace) -> Recipe:
    """Return the recipe that all arms share."""
    recipe = find_experiment(arguments.recipe).recipe
    given = {
        field: getattr(arguments, option)
        for option, field in FIELDS.items()
        if getattr(arguments, option) is not None
    }
    if "model.name" in given:
        given["model.arguments"] = {}
    if "optimizer.name" in given and "optimizer.lr" not in given:
        given["optimizer.lr"] = RATES[given["optimizer.name"]]
    return change_recipe(recipe, {**given, **parse_settings(arguments.settings)})


def _answer(outcomes: Sequence[RunResult], arguments: argparse.Namespace) -> int:
    """Write the pages, print the table; 1 where a run failed or diverged."""
    records = [outcome.record for outcome in outcomes if outcome.record is not None]
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    for outcome in failed:
        print(f"trainact: {name_run(outcome.recipe)}: {outcome.failure}", file=sys.stderr)
    if not records:
        raise TrActValueError("no run came to its end, so there is nothing to compare.")
    command = "trainact " + shlex.join(sys.argv[1:])
    comparison = write_comparison(records, arguments.out, command, arguments.jobs)
    _print(comparison)
    diverged = [record for record in records if record["status"] == "diverged"]
    return 1 if failed or diverged else 0


def _print(comparison: Comparison) -> None:
    """Print the answers: the table, what it means, how much sooner, and where to read on."""
    answers = comparison.answers
    print_final_table(answers)
    for budget, verdict in give_verdicts(answers):
        print(f"{budget} {'epoch' if budget == 1 else 'epochs'}: {verdict}")
    for found in answers.speed_ups:
        print(tell_speed_up(found))
    for told in answers.missing:
        print(told)
    if answers.jobs > 1:
        print(caution_about_time(answers.jobs))
    page = comparison.folder / "comparison.html"
    print(f"The page with curves, cost and every run: {page}")
