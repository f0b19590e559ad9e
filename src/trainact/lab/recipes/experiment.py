"""An experiment: one recipe, run in several arms, at several budgets, from several seeds.

One that names networks is a table of experiments, one for each network: ``split`` returns these
members, named ``TABLE/NETWORK``. Runs live below their member's name, so that runs of two networks
never share a folder, and only a member's runs are compared with each other.
"""

import dataclasses
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.recipes.arms import Arm, make_arm, parse_arms
from trainact.lab.recipes.names import name_network, parse_whole_numbers
from trainact.lab.recipes.recipe import Recipe, change_recipe, make_recipe
from trainact.lab.recipes.recipe_file import read_toml
from trainact.lab.schema import build_table, name_nearest

__all__ = [
    "Experiment",
    "find_experiment",
    "find_experiments",
    "list_experiments",
    "make_experiment",
    "read_tables",
]


@dataclass(frozen=True)
class ExperimentFields:
    """The table ``experiment`` of a recipe file."""

    title: str
    paper: str = ""  # the figure or table that it is the recipe of
    note: str = ""  # what no source states and was chosen here
    budgets: tuple[int, ...] = ()  # epochs; empty: the recipe's own
    seeds: str = "0-4"
    arms: tuple[str, ...] = ("plain", "tract")
    lams: tuple[float, ...] = (0.1,)
    networks: tuple[str, ...] = ()  # as in model.name; empty: the recipe's own
    arms_at: dict[str, list[str]] = field(default_factory=dict)  # at a budget that not all have
    at: dict[str, dict[str, Any]] = field(default_factory=dict)  # changes at a budget
    grid: dict[str, list[Any]] = field(default_factory=dict)  # values to choose from, by field
    extra_arms: dict[str, dict[str, Any]] = field(default_factory=dict)  # changes by name
    against: dict[str, str] = field(default_factory=dict)  # arms to compare with, beside plain
    smoke: dict[str, Any] = field(default_factory=dict)  # changes of a smoke run


@dataclass(frozen=True)
class Experiment:
    """A recipe and everything that varies.

    Attributes:
        name: its file's name.
        recipe: what all runs share.
        changes: by budget, what differs at it (a learning rate chosen for that length).
        grid: values to choose from on the held-out images, by field.
        networks: what ``model.name`` is in each member; empty: the recipe's own network alone.
        arms_at: by budget, the arms that are run at it, where not all are.
        smoke: what differs in a smoke run, beside what `shrink` changes in all.
        against: by arm, another arm that it is compared with, beside plain.
    """

    name: str
    title: str
    recipe: Recipe
    arms: tuple[Arm, ...]
    budgets: tuple[int, ...]
    seeds: tuple[int, ...]
    changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    paper: str = ""
    note: str = ""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    networks: tuple[str, ...] = ()
    arms_at: dict[int, tuple[str, ...]] = field(default_factory=dict)
    smoke: dict[str, Any] = field(default_factory=dict)
    against: dict[str, str] = field(default_factory=dict)

    def split(self) -> list["Experiment"]:
        """Return one experiment for each network, or this one where the network does not vary."""
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
        """Return one recipe a run; runs that are compared with each other stand side by side."""
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


def make_experiment(tables: dict[str, Any], name: str) -> Experiment:
    """Return the experiment of a recipe file's tables; without a table of its own, the one run.

    Raises:
        TrActValueError: a key, an arm or a value is not what it should be.
    """
    tables = dict(tables)
    head = tables.pop("experiment", None)
    recipe = make_recipe(tables, name)
    if head is None:
        arm = make_arm(recipe.run.arm or ("tract" if recipe.tract.enabled else "plain"), {})
        budget, seed = recipe.schedule.epochs, recipe.run.seed
        return Experiment(name, name, recipe, (arm,), (budget,), (seed,))
    fields: ExperimentFields = build_table(ExperimentFields, head, f"{name}, table experiment")
    arms = parse_arms(fields.arms, fields.lams) if fields.arms or not fields.extra_arms else []
    arms += [make_arm(arm, changes) for arm, changes in fields.extra_arms.items()]
    budgets = fields.budgets or (recipe.schedule.epochs,)
    for table, keys in (("at", fields.at), ("arms_at", fields.arms_at)):
        for key in keys:
            if key not in map(str, budgets):
                where = f"budget in {name}, experiment.{table}"
                raise TrActValueError(name_nearest(key, map(str, budgets), where))
    known = [arm.name for arm in arms]
    for given in (given for pair in fields.against.items() for given in pair):
        if given not in known:
            where = f"arm in {name}, experiment.against"
            raise TrActValueError(name_nearest(given, known, where))
    for given in (given for names in fields.arms_at.values() for given in names):
        if given not in known:
            where = f"arm in {name}, experiment.arms_at"
            raise TrActValueError(name_nearest(given, known, where))
    experiment = Experiment(
        name,
        fields.title,
        recipe,
        tuple(arms),
        budgets,
        tuple(parse_whole_numbers(fields.seeds, "seeds")),
        {int(budget): changes for budget, changes in fields.at.items()},
        fields.paper,
        fields.note,
        fields.grid,
        fields.networks,
        {int(budget): tuple(names) for budget, names in fields.arms_at.items()},
        fields.smoke,
        fields.against,
    )
    one_seed = dataclasses.replace(experiment, seeds=experiment.seeds[:1])
    one_seed.plan()  # every change names a field and fits it
    for name_of_field, values in fields.grid.items():
        for value in values:
            change_recipe(recipe, {name_of_field: value})
    return experiment


def list_experiments() -> list[str]:
    """Return the names of the recipes inside the package."""
    folder = resources.files("trainact.lab.recipes") / "catalogue"
    return sorted(
        file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")
    )


def read_tables(reference: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the tables of a recipe inside the package, or of a file.

    Raises:
        TrActValueError: there is none, or it is not TOML.
    """
    if reference.endswith(".toml"):
        path = Path(reference)
        return path.stem, read_toml(path)
    if reference not in list_experiments():
        raise TrActValueError(
            name_nearest(reference, list_experiments(), "recipe") + " A file ends in .toml."
        )
    with resources.as_file(resources.files("trainact.lab.recipes") / "catalogue") as folder:
        return reference, read_toml(folder / f"{reference}.toml")


def find_experiment(reference: str) -> Experiment:
    """Return the experiment of a name inside the package, or of a file.

    Raises:
        TrActValueError: there is none, or its file is wrong.
    """
    name, tables = read_tables(reference)
    return make_experiment(tables, name)


def find_experiments(reference: str) -> list[Experiment]:
    """Return all experiments of a family: of every name that begins with ``reference`` and a dash.

    >>> [experiment.name for experiment in find_experiments("cifar10-cpu-vit")]
    ['cifar10-cpu-vit-adam', 'cifar10-cpu-vit-sgd']

    Raises:
        TrActValueError: there is none, or a file is wrong.
    """
    if reference in list_experiments() or reference.endswith(".toml"):
        return [find_experiment(reference)]
    family = [name for name in list_experiments() if name.startswith(f"{reference}-")]
    return [find_experiment(name) for name in family] or [find_experiment(reference)]
