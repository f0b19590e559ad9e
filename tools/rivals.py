"""The trial of first layers: ``python -m tools.rivals --jobs 2 --data FOLDER``.

It does the runs that are missing, the most important results first, and can be stopped and started
at any time. A run whose record is committed under ``results/`` is not repeated. ``trainact collect
runs/rivals --into results`` adds the new records.

The last stage, ``--stages 6``, asks whether TrAct with the covariance and a relative λ can do
without standardised inputs. Its runs on inputs in [0, 1] and [0, 255] have folders of their own,
such as ``cifar10-cpu-vit-sgd-raw``.
"""

import argparse
import dataclasses
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainact.errors import TrActError, TrActValueError
from trainact.lab.commands.tune import find_tuning_file, tune
from trainact.lab.data import load_data
from trainact.lab.data.images import DataError
from trainact.lab.recipes.arms import Arm, make_lr_arm, parse_arms
from trainact.lab.recipes.experiment import Experiment, find_experiment
from trainact.lab.recipes.parts import FIRST_LAYER_LR
from trainact.lab.recipes.recipe import change_recipe, identify
from trainact.lab.recipes.tuning import read_tuning
from trainact.lab.records.record import Record
from trainact.lab.records.results import ARM_TUNING, RECORDS, read_lines
from trainact.lab.running.display import Display, choose_display
from trainact.lab.running.plan import PlannedRun, place_runs
from trainact.lab.running.runner import RunResult, run_all
from trainact.lab.schema import check_known, parse_whole_numbers
from trainact.lab.text import count
from trainact.lab.training.interruption import take_term_as_interrupt

__all__ = [
    *("FIRST", "OTHERS", "RECIPES", "STAGES", "TUNED", "UNITS", "VALUES"),
    *("Stage", "Trial", "main", "name_experiment", "read_committed"),
]

RESULTS = Path(__file__).parents[1] / "results"
RECIPES = (
    *("cifar10-cpu-resnet-sgd", "cifar10-cpu-vit-adam", "cifar10-cpu-vit-sgd"),
    *("imagenette-cpu-resnet", "imagenette-cpu-vit"),
)
FIRST = (
    *("plain", "tract-0.1", "eigen+tract-0.1", "eigen+tract-0.1+lr-0.1"),
    "eigen+frozen",
)
OTHERS = (
    *("eigen", "eigen+lr-0.1", "random+tract-0.1"),
    *("tract-centered", "tract-relative", "tract-centered-relative", "tract-norm-preserving"),
    *("mac", "centralised"),
)
TUNED = ("foof", "asgo", "muon-stem")
"""Arms whose first-layer learning rate is tuned before they run."""
UNITS = ("scaled+tract-0.1", "scaled+tract-centered-relative")
"""Arms that are compared on inputs of other units, on the recipes with SGD; with the default start,
the first layer's outputs would grow with its inputs."""
VALUES = {"standard": "standardised", "unit": "[0, 1]", "raw": "[0, 255]"}
"""Values of the recipe's field ``data.values``, and what they are."""


class Stage(NamedTuple):
    """Arms and seeds of one part of the trial."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    all_values: bool = False  # whether inputs have all of VALUES, on the recipes with SGD


STAGES = (
    Stage(FIRST, (0, 1, 2)),
    Stage(FIRST, (3, 4)),
    Stage(OTHERS, (0, 1, 2)),
    Stage(TUNED, (0, 1, 2)),
    Stage((*OTHERS, *TUNED), (3, 4)),
    Stage(UNITS, (0, 1, 2, 3, 4), all_values=True),
)
"""The parts of the trial, in the order in which they are done."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """The runs of the trial: each recipe at its longest budget."""

    out: Path  # of the runs
    results: Path = RESULTS  # with the committed records
    data: Path | None = None  # folder with one folder for each data set
    recipes: tuple[str, ...] = RECIPES

    def plan(self, stage: Stage) -> list[PlannedRun]:
        """Return the runs of a stage that have no committed record, one seed after another.

        Arms of ``TUNED`` that are not tuned yet are left out.
        """
        experiments = self._list_experiments(stage)
        committed = {
            experiment.name: {
                record["recipe_id"] for record in read_committed(self.results / experiment.name)
            }
            for experiment in experiments
        }
        runs: list[PlannedRun] = []
        for seed in stage.seeds:
            for experiment in experiments:
                name, arms = experiment.name, tuple(self._list_arms(experiment, stage))
                whole = dataclasses.replace(experiment, arms=arms, seeds=(seed,)).plan()
                missing = [run for run in whole if identify(run) not in committed[name]]
                runs += place_runs(missing, self.out / name, name)
        return runs

    def check_data(self, stages: Sequence[Stage]) -> None:
        """Check that the data sets of some stages are those of the committed records.

        Raises:
            DataError: a data set is another one, so its runs could not be paired.
        """
        experiments = [e for stage in stages for e in self._list_experiments(stage)]
        for experiment in {e.name: e for e in experiments}.values():
            records = list(read_committed(self.results / experiment.name))
            known = {record["data"]["fingerprint"] for record in records}
            data = load_data(experiment.recipe.data) if known else None
            if data is not None and data.fingerprint not in known:
                raise DataError(
                    f"{data.name} is not the data set of the committed records of "
                    f"{experiment.name}, so new runs could not be compared with them; give the "
                    "complete one with --data."
                )

    def tune_missing(self, stage: Stage, jobs: int, display: Display) -> None:
        """Tune the arms of a stage that need it and are not tuned yet, with seed 0."""
        for experiment in self._list_experiments(stage):
            for arm in parse_arms(stage.arms, []):
                if arm.name in TUNED and self._find_factor(experiment, arm) is None:
                    one = dataclasses.replace(experiment, seeds=(0,))
                    tune(one, self.out / experiment.name, jobs, display, arm)

    def _list_experiments(self, stage: Stage) -> list[Experiment]:
        """Return the experiments of a stage at their longest budgets."""
        found = []
        for experiment in map(find_experiment, self.recipes):
            recipe = experiment.recipe
            folder = self.data / recipe.data.name if self.data else None
            if folder is not None and folder.exists():
                recipe = change_recipe(recipe, {"data.folder": str(folder)})
            budgets = (max(experiment.budgets),)
            whole = dataclasses.replace(experiment, recipe=recipe, budgets=budgets, arms_at={})
            if not stage.all_values:
                found.append(whole)
            elif recipe.optimizer.name == "sgd":
                found += [_change_values(whole, values) for values in VALUES]
        return found

    def _list_arms(self, experiment: Experiment, stage: Stage) -> Iterator[Arm]:
        for arm in parse_arms(stage.arms, []):
            factor = self._find_factor(experiment, arm) if arm.name in TUNED else None
            if factor is not None:
                yield make_lr_arm(factor, arm)
            elif arm.name not in TUNED:
                yield arm

    def _find_factor(self, experiment: Experiment, arm: Arm) -> float | None:
        """Return the chosen multiplier of an arm; None if it is not tuned yet."""
        for file in (
            self.results / experiment.name / ARM_TUNING.format(arm.name),
            find_tuning_file(self.out / experiment.name, arm),
        ):
            if file.exists():
                chosen = read_tuning(file)["chosen"][str(experiment.budgets[0])]
                return float(chosen[FIRST_LAYER_LR])
        return None


def read_committed(folder: Path) -> Iterator[Record]:
    """Yield the records in a folder of results.

    Raises:
        TrActValueError: a record is damaged.
    """
    path = folder / RECORDS
    for run in read_lines(path) if path.exists() else ():
        if run.record is None:
            raise TrActValueError(run.damage)
        yield run.record


def name_experiment(recipe: str, values: str) -> str:
    """Return the name of the experiment, and of its folder, with a recipe on inputs of VALUES."""
    return recipe if values == "standard" else f"{recipe}-{values}"


def _change_values(experiment: Experiment, values: str) -> Experiment:
    if values == "standard":
        return experiment
    changes = {"data.values": values}
    if values == "raw":  # float32 is not precise enough for raw pixels
        changes["tract.moment"] = "float64"
    return dataclasses.replace(
        experiment,
        name=name_experiment(experiment.name, values),
        recipe=change_recipe(experiment.recipe, changes),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Do or list the missing runs; return 1 if one failed or diverged, 2 after an error.

    A signal saves the running runs first; the code is then that of a shell, 128 and its number.
    """
    try:
        with take_term_as_interrupt():
            return _run(_parse(argv))
    except TrActError as error:
        print(f"tools.rivals: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print("tools.rivals: interrupted; the same command continues from here.", file=sys.stderr)
        return getattr(error, "code", 128 + signal.SIGINT)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tools.rivals", description=__doc__)
    add = parser.add_argument
    add("--jobs", type=int, default=1, help="parallel runs (default: 1)")
    add(
        "--out", type=Path, default=Path("runs/rivals"), help="output folder (default: %(default)s)"
    )
    add("--data", default="", help="folder with one folder for each data set (cifar10, imagenette)")
    add("--recipes", default=",".join(RECIPES), help="recipes, separated by commas (default: all)")
    add("--stages", default=f"1-{len(STAGES)}", help="such as 2 or 1-3 (default: all, %(default)s)")
    add("--dry-run", action="store_true", help="list the missing runs without doing them")
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> int:
    recipes = tuple(arguments.recipes.split(","))
    check_known(recipes, RECIPES, "recipe of the trial")
    numbers = parse_whole_numbers(arguments.stages, "--stages")
    check_known(map(str, numbers), map(str, range(1, len(STAGES) + 1)), "stage of the trial")
    data = Path(arguments.data) if arguments.data else None
    trial = Trial(arguments.out, data=data, recipes=recipes)
    if not arguments.dry_run:
        trial.check_data([STAGES[number - 1] for number in numbers])
    display, results = choose_display(), list[RunResult]()
    for number in numbers:
        stage = STAGES[number - 1]
        if not arguments.dry_run:
            trial.tune_missing(stage, arguments.jobs, display)
        missing = [run for run in trial.plan(stage) if run.find_record() is None]
        print(f"stage {number}: {count(len(missing), 'run')} to do", flush=True)
        if arguments.dry_run:
            print("".join(f"  {run.name}\n" for run in missing), end="")
        elif missing:
            results += run_all(missing, arguments.jobs, display)
    bad = [r for r in results if r.record is None or r.record["status"] == "diverged"]
    for result in bad:
        reason = result.failure or (result.record or {}).get("failure")
        print(f"{result.run.name}: {reason}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
