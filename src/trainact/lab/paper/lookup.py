"""Printed numbers by the lab's names of recipes, networks, arms and budgets."""

from functools import cache

from trainact.errors import TrActValueError
from trainact.lab.paper.tables import list_tables, read_figures, read_table
from trainact.lab.paper.values import METRICS, UNSTATED_BUDGET, UNSTATED_LAM, Key, PrintedValue
from trainact.lab.text import describe_unknown

__all__ = [
    "TABLE_OF_NETWORKS",
    "find_places",
    "find_printed",
    "list_networks",
    "list_recipes",
    "printed_values",
]

TABLE_OF_NETWORKS = "cifar100-table"
"""The recipe that has 36 networks."""
AVERAGE = "average"


@cache
def _read_all() -> tuple[dict[Key, PrintedValue], dict[str, tuple[str, int]]]:
    """Return the numbers and the aliases of all tables."""
    values: dict[Key, PrintedValue] = {}
    aliases: dict[str, tuple[str, int]] = {}
    for table in map(read_table, list_tables()):
        values |= table.values
        aliases |= table.aliases
    return values, aliases


def printed_values() -> dict[Key, PrintedValue]:
    """Return all numbers of all tables by key."""
    return dict(_read_all()[0])


def list_recipes() -> list[str]:
    """Return the recipes with results in a table or a figure of the paper."""
    values, aliases = _read_all()
    in_figures = {recipe for figure in read_figures() for recipe in figure.recipes}
    return sorted({key.recipe for key in values} | set(aliases) | in_figures)


def list_networks() -> list[str]:
    """Return the networks of the CIFAR-100 table, in its order.

    >>> len(list_networks()), list_networks()[:2]
    (36, ['squeezenet', 'mobilenet'])
    """
    values = _read_all()[0]
    found = dict.fromkeys(key.network for key in values if key.recipe == TABLE_OF_NETWORKS)
    return [network for network in found if network is not None and network != AVERAGE]


def find_printed(
    recipe: str, network: str | None, arm: str, budget: int, metric: str
) -> PrintedValue | None:
    """Return the number that the paper prints for a run; None if it prints none.

    >>> find_printed("cifar100-table", "vgg16", "tract-0.1", 200, "top1").show()
    '72.73 ± 0.16'
    >>> find_printed("cifar10-vit", None, "plain", 100, "top1") is None  # only in a figure
    True

    Args:
        recipe: its name; for a fine-tuning, the number of the fine-tuned model is returned.
        network: of the CIFAR-100 table, or ``average``; ignored for recipes with one network.
        arm: plain or tract-λ. A number without stated λ is found by every λ; ``tract`` finds the
            number of the λ that the paper used.
        budget: epochs, ignored if the paper states none, and for a fine-tuning.
        metric: top1, top5, map, seconds or minutes.

    Raises:
        TrActValueError: the recipe, network or metric is unknown; the message names the most
            similar ones.
    """
    if metric not in METRICS:
        raise TrActValueError(describe_unknown(metric, METRICS, "metric"))
    _check_recipe(recipe)
    if recipe != TABLE_OF_NETWORKS:
        network = None
    elif network not in (known := [*list_networks(), AVERAGE]):
        kind = f"network of the recipe {recipe}"
        raise TrActValueError(describe_unknown(network or "", known, kind))
    values, aliases = _read_all()
    recipe, budget = aliases.get(recipe, (recipe, budget))
    with_lam = sorted({key.arm for key in values if key.arm.startswith(f"{UNSTATED_LAM}-")})
    arms = [arm]
    if arm == UNSTATED_LAM:
        arms += with_lam
    elif arm.startswith(f"{UNSTATED_LAM}-"):
        arms.append(UNSTATED_LAM)
    keys = [
        Key(recipe, network, one, epochs, metric)
        for one in arms
        for epochs in (budget, UNSTATED_BUDGET)
    ]
    return next((values[key] for key in keys if key in values), None)


def find_places(recipe: str) -> list[str]:
    """Return the tables and figures with a recipe's results: numbers, labels and sections.

    >>> find_places("cifar10-vit-lambda")
    ['Figure 6 (fig:vit-cifar-10-lambda), Section 4.4']

    Raises:
        TrActValueError: the recipe is unknown; the message names the most similar ones.
    """
    _check_recipe(recipe)
    recipe, _ = _read_all()[1].get(recipe, (recipe, 0))
    tables = [
        table.place
        for table in map(read_table, list_tables())
        if any(key.recipe == recipe for key in table.values)
    ]
    return tables + [figure.place for figure in read_figures() if recipe in figure.recipes]


def _check_recipe(recipe: str) -> None:
    if recipe not in list_recipes():
        raise TrActValueError(describe_unknown(recipe, list_recipes(), "recipe of the paper"))
