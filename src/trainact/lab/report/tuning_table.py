"""What ``trainact tune`` tried and chose, as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainact.lab.analysis.runs import Record
from trainact.lab.recipes.arms import BASELINE, FIRST_LAYER_LR
from trainact.lab.report.tables import Grid
from trainact.lab.report.wording import show_number
from trainact.lab.text import count_epochs

__all__ = ["HOW_RATES_ARE_CHOSEN", "make_tuning_grid", "show_value"]

HOW_RATES_ARE_CHOSEN = (
    "Every value was tried in plain training only, on training images that were held out for this; "
    "the best is for every arm. A value whose loss became NaN is never chosen."
)


def make_tuning_grid(tuning: Mapping[str, Any]) -> Grid:
    """Return each value tried, its accuracy on held-out images, and whether it was chosen."""
    rows = []
    for row in tuning["tried"]:
        budget, name, value = row["budget"], row["field"], row["value"]
        beside = ", ".join(f"{key} {show_value(kept)}" for key, kept in row["with"].items())
        accuracy = row["accuracy"]
        rows.append(
            (
                name,
                str(budget),
                show_value(value),
                "diverged" if accuracy is None else show_number(accuracy),
                "chosen" if tuning["chosen"][str(budget)][name] == value else "",
                str(len(row["seeds"])),
                beside or "-",
            )
        )
    head = ("field", "epochs", "value", "held-out, %", "", "seeds", "beside")
    caption = f"Values tried in plain training, on {tuning['held_out']} held-out images"
    return Grid(caption, head, tuple(rows))


def show_value(value: Any) -> str:
    """Return a value of a grid as names and tables have it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def list_disagreements(tuning: Mapping[str, Any], records: Sequence[Record]) -> list[str]:
    """Return where runs do not have the rates that were chosen, in one sentence for each budget."""
    told = []
    for budget, chosen in tuning["chosen"].items():
        plain = [r for r in records if (r["arm"], str(r["budget"])) == (BASELINE, budget)]
        for dotted, value in chosen.items():
            table, _, key = dotted.partition(".")
            there = {r["recipe"].get(table, {}).get(key) for r in plain}
            if dotted != FIRST_LAYER_LR and there - {value}:
                shown = ", ".join(map(str, sorted(there - {value}, key=str)))
                told.append(
                    f"The runs of {count_epochs(int(budget))} have {dotted} {shown}, not the "
                    f"chosen {value}."
                )
    return told
