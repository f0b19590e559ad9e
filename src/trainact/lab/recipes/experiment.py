"""Experiments: a recipe that is run in several arms, at several budgets, from several seeds.

An experiment over several networks is a table of experiments: ``split`` returns one member per
network, named ``TABLE/NETWORK``. Each member has its own folder of runs, and only runs of the same
member are compared with each other.
"""

import dataclasses
import functools
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActValueError
from trainact.lab.recipes.arms import Arm, arm_of_recipe, make_arm, parse_arms
from trainact.lab.recipes.recipe import (
    Recipe,
    change_recipe,
    make_recipe,
    read_toml,
    recipe_to_dict,
)
from trainact.lab.schema import build_table, check_known, parse_whole_numbers
from trainact.lab.text import describe_unknown

__all__ = [
    "Experiment",
    "Pretraining",
    "find_experiment",
    "find_experiments",
    "list_experiments",
    "make_experiment",
    "name_network",
    "read_recipe_tables",
]


@dataclass(frozen=True)
class Pretraining:
    """The recipe and budget whose runs provide the initial weights."""

    recipe: str
    budget: int


@dataclass(frozen=True, kw_only=True)
class _Description:
    """Fields of an experiment that its file holds in their final form."""

    title: str
    paper: str = ""  # figure or table of the paper
    note: str = ""  # settings that no source states
    networks: tuple[str, ...] = ()  # values of model.name; empty: the recipe's network
    grid: dict[str, list[Any]] = field(default_factory=dict)  # values to tune, by field
    against: dict[str, str] = field(default_factory=dict)  # by arm: a second arm to compare with
    own_arms: tuple[str, ...] = ()  # arms that the paper does not have
    timed: bool = False  # its times are the result: runs are done alone, none is taken from another
    smoke: dict[str, Any] = field(default_factory=dict)  # further changes in smoke runs
    pretraining: Pretraining | None = None  # origin of the initial weights


@dataclass(frozen=True, kw_only=True)
class _ExperimentTable(_Description):
    """The table ``experiment`` of a recipe file."""

    budgets: tuple[int, ...] = ()  # epochs; empty: the recipe's
    seeds: str = "0-4"
    arms: tuple[str, ...] = ("plain", "tract")
    lams: tuple[float, ...] = (DEFAULT_LAM,)
    extra_arms: dict[str, dict[str, Any]] = field(default_factory=dict)  # changes, by name
    arms_at: dict[str, list[str]] = field(default_factory=dict)
    at: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Experiment(_Description):
    """A recipe and everything that varies between its runs."""

    name: str  # of its file
    recipe: Recipe  # the fields that all runs share
    arms: tuple[Arm, ...]
    budgets: tuple[int, ...]  # numbers of epochs, each with its own full schedule
    seeds: tuple[int, ...]
    changes: dict[int, dict[str, Any]] = field(default_factory=dict)  # fields, by budget
    arms_at: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by budget, if not all

    def split(self) -> list["Experiment"]:
        """Return one experiment per network, or this one if it has a single network."""
        return [
            dataclasses.replace(
                self,
                name=f"{self.name}/{name_network(network)}",
                title=f"{self.title}: {name_network(network)}",
                recipe=change_recipe(self.recipe, {"model.name": network}),
                networks=(),
            )
            for network in self.networks
        ] or [self]

    def plan(self) -> list[Recipe]:
        """Return one recipe per run; runs that are compared with each other are neighbours."""
        return [
            change_recipe(
                member.recipe,
                {
                    "schedule.epochs": budget,
                    **self.changes.get(budget, {}),
                    **arm.changes,
                    "run.arm": arm.name,
                    "run.seed": seed,
                },
            )
            for member in self.split()
            for seed in self.seeds
            for budget in self.budgets
            for arm in self.arms
            if arm.name in self.arms_at.get(budget, [arm.name])
        ]


def name_network(model: str) -> str:
    """Return the name of a network in tables and folders, from its ``model.name``.

    >>> name_network("lab:vgg16"), name_network("timm:vit_tiny.in1k")
    ('vgg16', 'timm-vit_tiny.in1k')
    """
    return model.removeprefix("lab:").replace(":", "-").replace("/", "-")


def make_experiment(tables: dict[str, Any], name: str) -> Experiment:
    """Return the experiment of a recipe file; without a table ``experiment`` it has one run."""
    tables = dict(tables)
    head = tables.pop("experiment", None)
    recipe = make_recipe(tables, name)
    if head is None:
        arm = arm_of_recipe(recipe.arm, recipe_to_dict(recipe))
        return Experiment(
            name=name,
            title=name,
            recipe=recipe,
            arms=(arm.without_changes(),),
            budgets=(recipe.schedule.epochs,),
            seeds=(recipe.run.seed,),
        )
    table: _ExperimentTable = build_table(_ExperimentTable, head, f"{name}, table experiment")
    if not all(0 < lam < float("inf") for lam in table.lams):
        raise TrActValueError(f"{name}, experiment.lams takes positive numbers; got {table.lams}.")
    arms = parse_arms(table.arms, table.lams) if table.arms or not table.extra_arms else []
    arms += [_make_extra_arm(recipe, arm, changes) for arm, changes in table.extra_arms.items()]
    known, budgets = [arm.name for arm in arms], table.budgets or (recipe.schedule.epochs,)
    for key, given in (("at", table.at), ("arms_at", table.arms_at)):
        check_known(given, map(str, budgets), f"budget in {name}, experiment.{key}")
    compared = (*table.against, *table.against.values())
    check_known(compared, known, f"arm in {name}, experiment.against")
    check_known(table.own_arms, known, f"arm in {name}, experiment.own_arms")
    listed = [arm for names in table.arms_at.values() for arm in names]
    check_known(listed, known, f"arm in {name}, experiment.arms_at")
    if table.pretraining is not None:
        where = f"recipe in {name}, experiment.pretraining"
        check_known([table.pretraining.recipe], list_experiments(), where)
    experiment = Experiment(
        **{f.name: getattr(table, f.name) for f in dataclasses.fields(_Description)},
        name=name,
        recipe=recipe,
        arms=tuple(arms),
        budgets=budgets,
        seeds=parse_whole_numbers(table.seeds, f"{name}, experiment.seeds"),
        changes={int(budget): changes for budget, changes in table.at.items()},
        arms_at={int(budget): tuple(names) for budget, names in table.arms_at.items()},
    )
    one_seed = dataclasses.replace(experiment, seeds=experiment.seeds[:1])
    one_seed.plan()  # raises if a change does not fit its field
    for dotted, values in table.grid.items():
        for value in values:
            change_recipe(recipe, {dotted: value})
    return experiment


def list_experiments() -> list[str]:
    """Return the names of the package's recipes."""
    folder = resources.files("trainact.lab.recipes") / "catalogue"
    return sorted(
        file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")
    )


def read_recipe_tables(reference: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the tables of one of the package's recipes, or of a file.

    Raises:
        TrActValueError: there is no such recipe, or its file is not TOML.
    """
    if reference.endswith(".toml"):
        path = Path(reference)
        return path.stem, read_toml(path)
    if reference not in list_experiments():
        raise TrActValueError(
            describe_unknown(reference, list_experiments(), "recipe")
            + " The path of a recipe file ends in .toml."
        )
    with resources.as_file(resources.files("trainact.lab.recipes") / "catalogue") as folder:
        return reference, read_toml(folder / f"{reference}.toml")


def find_experiment(reference: str) -> Experiment:
    """Return the experiment of one of the package's recipes, or of a file."""
    read = _read_experiment if reference.endswith(".toml") else _read_own_experiment
    return read(reference)


def _read_experiment(reference: str) -> Experiment:
    name, tables = read_recipe_tables(reference)
    return make_experiment(tables, name)


_read_own_experiment = functools.cache(_read_experiment)  # checking all runs takes time


def find_experiments(reference: str) -> list[Experiment]:
    """Return one experiment, or a family: all whose names begin with ``reference`` and a dash.

    >>> [experiment.name for experiment in find_experiments("cifar10-cpu-vit")]
    ['cifar10-cpu-vit-adam', 'cifar10-cpu-vit-sgd']
    """
    if reference in list_experiments() or reference.endswith(".toml"):
        return [find_experiment(reference)]
    family = [name for name in list_experiments() if name.startswith(f"{reference}-")]
    return [find_experiment(name) for name in family or [reference]]


def _make_extra_arm(recipe: Recipe, name: str, changes: dict[str, Any]) -> Arm:
    """Return an arm of the table ``extra_arms``, its values converted to the fields' types."""
    tables, converted = recipe_to_dict(change_recipe(recipe, changes)), {}
    for dotted, value in changes.items():
        table, _, key = dotted.partition(".")
        converted[dotted] = tables[table].get(key, value)  # a network's argument has no field
    return make_arm(name, converted)
