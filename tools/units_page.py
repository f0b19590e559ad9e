"""Fill the part of ``docs/rivals.md`` on inputs of other units, from records of `tools.rivals`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.rivals import RECIPES, UNITS, VALUES, name_experiment, read_committed
from tools.rivals_page import NO_RECORD, format_difference
from trainact.lab.analysis.answers import Difference, Summary, answer
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.text import count

__all__ = ["UnitsResult", "read_units", "write_units"]


@dataclass(frozen=True)
class UnitsResult:
    """The two arms of ``UNITS`` on one recipe and one kind of inputs."""

    recipe: str
    values: str  # of data.values
    summaries: dict[str, Summary]  # by the name of the arm
    difference: Difference | None  # of the second arm to the first


def read_units(results: Path) -> list[UnitsResult]:
    """Return the results of all recipes and kinds of inputs that have records.

    Only the longest budget counts.

    Raises:
        TrActValueError: a record is damaged, or the records of a recipe cannot be compared.
    """
    found = []
    for recipe in RECIPES:
        for values in VALUES:
            committed = read_committed(results / name_experiment(recipe, values))
            records = [record for record in committed if record["arm"] in UNITS]
            longest = max((record["budget"] for record in records), default=0)
            records = [record for record in records if record["budget"] == longest]
            if records:
                answers = answer(records, against={UNITS[1]: UNITS[0]})
                summaries = {summary.arm.name: summary for summary in answers.summaries}
                difference = next(iter(answers.others), None)
                found.append(UnitsResult(recipe, values, summaries, difference))
    return found


def write_units(results: Sequence[UnitsResult]) -> dict[str, str]:
    """Return the text of the marked place, by its name."""
    if not results:
        return {"rivals-units": NO_RECORD}
    head = ("recipe", "inputs", *(f"`{arm}`" for arm in UNITS), "difference")
    rows = tuple(
        (
            result.recipe,
            VALUES[result.values],
            *(_format_summary(result.summaries.get(arm)) for arm in UNITS),
            format_difference(result.difference),
        )
        for result in results
    )
    return {"rivals-units": render_markdown(Grid("", head, rows, text_columns=2))}


def _format_summary(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    diverged = f"{count(len(summary.diverged), 'run')} diverged" if summary.diverged else ""
    if summary.mean is None:
        return diverged
    return f"{summary.mean:.2f} % ({count(summary.n, 'seed')})" + (f", {diverged}" * bool(diverged))
