"""Runs that are to be done: each a recipe, the folder that it belongs to, and a name of its own."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainact.errors import TrActValueError
from trainact.lab.recipes.names import name_run
from trainact.lab.recipes.recipe import Recipe
from trainact.lab.records.record import RunFolder, read_record

__all__ = ["PlannedRun", "Shard", "parse_shard", "place_runs"]


class PlannedRun(NamedTuple):
    """A run before it is done.

    Attributes:
        recipe: what is trained, and how.
        root: the folder of its experiment's runs.
        member: the experiment it is of, where there are several.
    """

    recipe: Recipe
    root: Path
    member: str = ""

    @property
    def name(self) -> str:
        """Return what a reader calls it, different from all others of a plan."""
        return f"{self.member}: {name_run(self.recipe)}" if self.member else name_run(self.recipe)

    @property
    def folder(self) -> RunFolder:
        """Return the run's own folder."""
        return RunFolder(self.root, self.recipe)

    def find_record(self) -> dict[str, Any] | None:
        """Return the record if the run has ended; a damaged one is left to ``train`` to tell of."""
        folder = self.folder
        if not folder.record_path.exists():
            return None
        try:
            record = read_record(folder.record_path)
        except TrActValueError:
            return None
        return record if record["recipe_id"] == folder.identity else None


def place_runs(recipes: Iterable[Recipe], root: Path, member: str = "") -> list[PlannedRun]:
    """Return the runs of one experiment, below ``root``."""
    return [PlannedRun(recipe, root, member) for recipe in recipes]


class Shard(NamedTuple):
    """One of ``parts`` parts of a plan, ``number`` from 1."""

    number: int
    parts: int

    def choose(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return this part of the runs, in the plan's order.

        The longest come first and are dealt in turn, so that the parts have equal numbers of runs
        of each length, to within one, and the runs of one network, which are neighbours in a plan,
        go to different parts. What is done already plays no role: the same command always means
        the same part.
        """
        order = sorted(range(len(runs)), key=lambda i: -runs[i].recipe.schedule.epochs)
        return [runs[i] for i in sorted(order[self.number - 1 :: self.parts])]


def parse_shard(text: str) -> Shard:
    """Return the shard that ``i/n`` names.

    >>> parse_shard("2/8")
    Shard(number=2, parts=8)

    Raises:
        TrActValueError: it is something else, or i is not from 1 to n.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise TrActValueError(f"--shard takes i/n with i from 1 to n, such as 3/8; got {text!r}.")
    return Shard(int(match[1]), int(match[2]))
