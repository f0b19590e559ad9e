"""What ``trainact tune`` tried and chose, as a table."""

from collections.abc import Mapping
from typing import Any

from trainact.lab.tables import Grid
from trainact.lab.wording import show_number

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
