"""The paper's printed results for ``docs/when.md``: plain against TrAct, and the time on GPUs."""

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from trainact.lab.paper.claims import read_claim
from trainact.lab.paper.tables import PrintedTable, list_networks, read_tables
from trainact.lab.paper.values import TRACT_ARMS, Key, PrintedValue
from trainact.lab.recipes.arms import BASELINE
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.text import count_epochs

__all__ = [
    *("PrintedPair", "describe_gpu_cost", "describe_paper", "list_paper_losses"),
    *("list_printed_pairs", "render_paper"),
]

ACCURACIES = ("top1", "map")
TIMED = {
    "time-cifar10-vit": "a small ViT on CIFAR-10",
    "time-vit-s": "ViT-S on ImageNet",
    "time-vit-b": "ViT-B on ImageNet",
}
"""The paper's claims on the training time with TrAct, and their networks."""
SPEED_UP = "speed-up-range"
"""The paper's claim on the number of epochs."""


class PrintedPair(NamedTuple):
    """The numbers that the paper prints for one setting."""

    key: Key  # of the number with TrAct
    plain: PrintedValue
    tract: PrintedValue

    @property
    def difference(self) -> float:
        """Return TrAct minus plain in points, without the rounding error of a subtraction."""
        return round((self.tract.mean - self.plain.mean) * 10**self._shift, 6)

    @property
    def decimals(self) -> int:
        """Return the decimals that the paper prints, in points."""
        return self.tract.decimals - self._shift

    @property
    def _shift(self) -> int:
        """Return 2 for a mean average precision, which is printed as a number up to 1."""
        return 2 if self.key.metric == "map" else 0


def list_printed_pairs(table: PrintedTable) -> list[PrintedPair]:
    """Return the settings for which the paper prints a plain and a TrAct accuracy.

    A setting is a recipe, a network and a number of epochs. Averages over networks are left out.
    """
    networks = (None, *list_networks())
    pairs = []
    for key, tract in table.values.items():
        plain = table.values.get(key._replace(arm=BASELINE))
        wanted = key.arm in TRACT_ARMS and key.metric in ACCURACIES and key.network in networks
        if wanted and plain is not None:
            pairs.append(PrintedPair(key, plain, tract))
    return pairs


def _list_accuracy_tables() -> Iterator[tuple[PrintedTable, list[PrintedPair]]]:
    for table in read_tables():
        if pairs := list_printed_pairs(table):
            yield table, pairs


def render_paper() -> str:
    """Return how often the paper's own numbers with TrAct are above the plain ones."""
    rows = []
    for table, pairs in _list_accuracy_tables():
        found = [pair.difference for pair in pairs]
        signs = (sum(d > 0 for d in found), sum(d == 0 for d in found), sum(d < 0 for d in found))
        decimals = pairs[0].decimals
        mean, low, high = (
            f"{d:+.{decimals}f}" for d in (statistics.fmean(found), min(found), max(found))
        )
        place = " and ".join(f"Table {number}" for number in table.numbers)
        rows.append((place, table.title, *map(str, signs), mean, f"{low} to {high}"))
    head = ("in the paper", "content", "higher", "equal", "lower", "mean difference", "range")
    return render_markdown(Grid("", head, tuple(rows), text_columns=2))


def describe_paper() -> str:
    """Return the same as a short list, and the speed-up that the paper states."""
    lines = []
    for table, pairs in _list_accuracy_tables():
        found = [pair.difference for pair in pairs]
        mean = f"{statistics.fmean(found):+.{pairs[0].decimals}f}"
        higher = f"{sum(d > 0 for d in found)} of {len(found)}"
        lines.append(f"- {table.title}: higher with TrAct in {higher}, mean difference {mean}")
    stated = read_claim(SPEED_UP).stated
    lines.append(f"- Epochs for the same accuracy: fewer by factors of {stated}, as the paper says")
    return "\n".join(lines)


def list_paper_losses() -> str:
    """Return the settings of the paper in which the number with TrAct is the lower one."""
    lines = []
    for table, pairs in _list_accuracy_tables():
        for key, plain, tract in pairs:
            if tract.mean < plain.mean:
                name = f"{key.recipe}, {key.network}" if key.network else key.recipe
                epochs = f", {count_epochs(key.budget)}" if key.budget else ""
                place = " and ".join(map(str, table.numbers))
                lines.append(
                    f"- {name}{epochs}: plain {plain.show()}, TrAct {tract.show()} (Table {place})"
                )
    return "\n".join(lines) or "There is none."


def describe_gpu_cost() -> str:
    """Return the extra training time that the paper states for GPUs."""
    stated = ", ".join(f"{read_claim(name).stated} % for {net}" for name, net in TIMED.items())
    return (
        f"We have not measured GPUs. On GPUs, the paper reports that training takes longer by "
        f"{stated}."
    )
