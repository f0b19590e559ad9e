"""Runs to do: their folders and names, their distribution over jobs, and the command for them."""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainact.errors import TrActValueError
from trainact.lab.data.names import COLLECTIONS, DETECTION
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.recipes.recipe import Recipe, identify, name_run
from trainact.lab.records.record import RunFolder, read_record

__all__ = ["PlannedRun", "Shard", "format_command", "parse_shard", "place_runs"]


class PlannedRun(NamedTuple):
    """A run to do."""

    recipe: Recipe
    root: Path  # folder of its experiment's runs
    member: str = ""  # name of its experiment, if a plan has several
    timed: bool = False  # see Experiment.timed

    @property
    def name(self) -> str:
        """Return a name that is unique in a plan."""
        return f"{self.member}: {name_run(self.recipe)}" if self.member else name_run(self.recipe)

    @property
    def folder(self) -> RunFolder:
        """Return the run's folder."""
        return RunFolder(self.root, self.recipe)

    def find_record(self) -> dict[str, Any] | None:
        """Return the record of a finished run, or None; ``train`` reports a damaged record."""
        folder = self.folder
        try:
            record = read_record(folder.record_path)
        except TrActValueError:  # there is none, or it is damaged
            return None
        return record if record["recipe_id"] == folder.identity else None


def place_runs(
    recipes: Iterable[Recipe], root: Path, member: str = "", timed: bool = False
) -> list[PlannedRun]:
    """Return the runs of one experiment, with folders in ``root``."""
    return [PlannedRun(recipe, root, member, timed) for recipe in recipes]


class Shard(NamedTuple):
    """Part ``number`` of ``parts`` parts of a plan, counted from 1."""

    number: int
    parts: int

    def choose(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return this part of the runs, in the plan's order.

        The runs are sorted by budget and dealt out in turn: the parts have equal numbers of runs of
        each budget, up to one, and the runs of one network are spread over the parts. A part does
        not depend on which runs are done. A run that several experiments of the plan have is in one
        part, which does it once.
        """
        names = [identify(run.recipe) for run in runs]
        first = {name: i for i, name in reversed(list(enumerate(names)))}
        order = sorted(set(first.values()), key=lambda i: (-runs[i].recipe.schedule.epochs, i))
        mine = set(order[self.number - 1 :: self.parts])
        return [run for run, name in zip(runs, names, strict=True) if first[name] in mine]


def parse_shard(text: str) -> Shard:
    """Return the shard of the text ``i/n``.

    >>> parse_shard("2/8")
    Shard(number=2, parts=8)
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise TrActValueError(f"--shard takes i/n with i from 1 to n, such as 3/8; got {text!r}.")
    return Shard(int(match[1]), int(match[2]))


def format_command(experiment: Experiment, verb: str = "run", tuned: bool = False) -> str:
    r"""Return the arguments of ``trainact`` for an experiment, with data and weights to fill in.

    With ``tuned`` they name the file that ``trainact tune`` writes by default.

    >>> from trainact.lab.recipes.experiment import find_experiment
    >>> format_command(find_experiment("imagenet-resnet18"), "tune")
    'tune imagenet-resnet18 --data path/to/imagenet'
    """
    data, source = experiment.recipe.data, experiment.pretraining
    lines = [f"{verb} {experiment.name}"]
    if data.name in (*COLLECTIONS, DETECTION):
        lines[0] += f" --data path/to/{shlex.quote(data.name)}"
    if source is not None:
        run = f"{{pretraining}}-{source.budget}ep-seed{{seed}}-*"
        lines.append(f"--model.weights 'runs/{source.recipe}/runs/{run}/weights.safetensors'")
    if tuned:
        lines.append(f"--tuned runs/{experiment.name}/tuning/tuning.json")
    if data.name == DETECTION:
        lines.append("--model.arguments.weights path/to/vgg16.safetensors")
    return " \\\n    ".join(lines)
