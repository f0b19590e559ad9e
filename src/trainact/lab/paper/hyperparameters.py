"""The hyperparameters that the paper prints, by the names of recipe fields."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainact.errors import TrActValueError
from trainact.lab.paper.tables import read_toml_resource
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.text import describe_unknown

__all__ = ["Hyperparameters", "list_hyperparameters", "needs_tuning", "read_hyperparameters"]

RATE = "optimizer.lr"

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Hyperparameters:
    """The printed hyperparameters of one experiment."""

    section: str
    fields: Mapping[str, Numbers]  # by dotted recipe field, all values used
    at: Mapping[int, Mapping[str, Numbers]]  # by epochs, the fields that depend on them
    grid: Numbers  # learning rates that plain's was chosen from
    other: Mapping[str, Numbers]  # numbers that are not recipe fields


def list_hyperparameters() -> list[str]:
    """Return the recipes with printed hyperparameters, after ``method`` for all experiments."""
    return list(read_toml_resource("hyperparameters"))


def read_hyperparameters(recipe: str) -> Hyperparameters:
    """Return the printed hyperparameters of a recipe.

    >>> printed = read_hyperparameters("cifar10-vit")
    >>> printed.fields["optimizer.label_smoothing"], printed.at[100]["optimizer.lr"]
    ((0.1,), (0.001,))

    Raises:
        TrActValueError: the recipe has none; the message names the most similar recipes.
    """
    content = read_toml_resource("hyperparameters")
    if recipe not in content:
        kind = "recipe with printed hyperparameters"
        raise TrActValueError(describe_unknown(recipe, content, kind))
    table = content[recipe]
    return Hyperparameters(
        section=table["section"],
        fields=_read_numbers(table.get("fields", {})),
        at={int(budget): _read_numbers(row) for budget, row in table.get("at", {}).items()},
        grid=_read(table.get("grid", [])),
        other=_read_numbers(table.get("other", {})),
    )


def needs_tuning(experiment: Experiment) -> bool:
    """Return whether a learning rate has to be tuned: the recipe has a grid, the paper no value.

    >>> from trainact.lab.recipes.experiment import find_experiment
    >>> [needs_tuning(find_experiment(f"{data}-resnet18-sgd")) for data in ("cifar10", "cifar100")]
    [False, True]
    """
    if RATE not in experiment.grid or experiment.name not in list_hyperparameters():
        return False
    printed = read_hyperparameters(experiment.name)
    return all(RATE not in fields for fields in (printed.fields, *printed.at.values()))


def _read_numbers(table: Mapping[str, str | list[str]]) -> dict[str, Numbers]:
    return {name: _read(text) for name, text in table.items()}


def _read(text: str | list[str]) -> Numbers:
    return tuple(map(_parse_number, [text] if isinstance(text, str) else text))


def _parse_number(text: str) -> float:
    """Return a number, possibly printed as a power of ten.

    >>> _parse_number("0.08"), _parse_number("10^-3")
    (0.08, 0.001)
    """
    base, power, exponent = text.partition("^")
    return float(base) ** float(exponent) if power else float(base)
