"""A printed number by the names that recipes, networks, arms and budgets have in the lab."""

from functools import cache

from trainact.errors import TrActValueError
from trainact.lab.paper.tables import list_tables, read_figures, read_table
from trainact.lab.paper.values import METRICS, UNSTATED_BUDGET, UNSTATED_LAM, Key, PrintedValue
from trainact.lab.schema import name_nearest

__all__ = ["find_places", "find_printed", "list_networks", "list_recipes", "printed_values"]

TABLE_OF_NETWORKS = "cifar100-table"
AVERAGE = "average"


@cache
def _read_all() -> tuple[dict[Key, PrintedValue], dict[str, tuple[str, int]]]:
    """Return the numbers of all tables, and which recipe's at which budget another recipe has."""
    values: dict[Key, PrintedValue] = {}
    aliases: dict[str, tuple[str, int]] = {}
    for table in map(read_table, list_tables()):
        values |= table.values
        aliases |= table.aliases
    return values, aliases


def printed_values() -> dict[Key, PrintedValue]:
    """Return every number of every table by its key."""
    return dict(_read_all()[0])


def list_recipes() -> list[str]:
    """Return the recipes that the paper has a table or a figure of."""
    values, aliases = _read_all()
    drawn = {recipe for figure in read_figures() for recipe in figure.recipes}
    return sorted({key.recipe for key in values} | set(aliases) | drawn)


def list_networks() -> list[str]:
    """Return the networks of the CIFAR-100 table in their order.

    >>> len(list_networks()), list_networks()[:2]
    (36, ['squeezenet', 'mobilenet'])
    """
    values = _read_all()[0]
    found = dict.fromkeys(key.network for key in values if key.recipe == TABLE_OF_NETWORKS)
    return [network for network in found if network is not None and network != AVERAGE]


def find_printed(
    recipe: str, network: str | None, arm: str, budget: int, metric: str
) -> PrintedValue | None:
    """Return what the paper prints for a run, or None where it prints nothing.

    >>> find_printed("cifar100-table", "vgg16", "tract-0.1", 200, "top1").show()
    '72.73 ± 0.16'
    >>> find_printed("cifar10-vit", None, "plain", 100, "top1") is None  # a figure shows it
    True

    Args:
        recipe: its name; of a fine-tuning it gives what is printed for the model fine-tuned.
        network: of the CIFAR-100 table, or ``average``; of no effect for recipes with one network.
        arm: plain, or tract-λ; where the paper does not state λ, every λ finds its number, and
            tract alone finds that of the λ which the paper has there.
        budget: epochs; where the paper states none, every budget finds its number, and of a
            fine-tuning that of the epochs before it.
        metric: top1, top5, map, seconds or minutes.

    Raises:
        TrActValueError: the paper has no such recipe or network, or there is no such metric; the
            nearest names are given.
    """
    if metric not in METRICS:
        raise TrActValueError(name_nearest(metric, METRICS, "metric"))
    if recipe not in list_recipes():
        raise TrActValueError(name_nearest(recipe, list_recipes(), "recipe of the paper"))
    if recipe == TABLE_OF_NETWORKS:
        known = [*list_networks(), AVERAGE]
        if network not in known:
            raise TrActValueError(
                name_nearest(str(network), known, f"network of the recipe {recipe}")
            )
    else:
        network = None
    values, aliases = _read_all()
    recipe, budget = aliases.get(recipe, (recipe, budget))
    arms = [arm]
    if arm.startswith("tract-"):
        arms.append(UNSTATED_LAM)
    elif arm == UNSTATED_LAM:
        arms += sorted({key.arm for key in values if key.arm.startswith("tract-")})
    keys = [
        Key(recipe, network, one, epochs, metric)
        for one in arms
        for epochs in (budget, UNSTATED_BUDGET)
    ]
    return next((values[key] for key in keys if key in values), None)


def find_places(recipe: str) -> list[str]:
    """Return where in the paper a recipe's results are: numbers, labels and sections, tables first.

    >>> find_places("cifar10-vit-lambda")
    ['Figure 6 (fig:vit-cifar-10-lambda), Section 4.4']

    Raises:
        TrActValueError: the paper has no such recipe; the nearest names are given.
    """
    if recipe not in list_recipes():
        raise TrActValueError(name_nearest(recipe, list_recipes(), "recipe of the paper"))
    named, _ = _read_all()[1].get(recipe, (recipe, 0))
    tables = [
        table.place
        for table in map(read_table, list_tables())
        if any(key.recipe == named for key in table.values)
    ]
    return tables + [figure.place for figure in read_figures() if named in figure.recipes]
