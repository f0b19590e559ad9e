"""What a comparison's page says, in order, before it is Markdown or HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainact.lab.analysis.answers import Answers
from trainact.lab.analysis.runs import Record, list_differences
from trainact.lab.environment import count_threads
from trainact.lab.metric import ACCURACY
from trainact.lab.recipes.arms import BASELINE, name_arm
from trainact.lab.report.besides import make_besides_grid
from trainact.lab.report.tables import (
    Grid,
    make_cost_grid,
    make_crossing_grid,
    make_final_grid,
    make_other_grid,
    make_run_grid,
    make_speed_up_grid,
)
from trainact.lab.report.wording import (
    CROSSINGS_ARE_NOT_SPEED_UPS,
    HOW_SPEED_UPS_ARE_FOUND,
    HOW_TO_READ_INTERVALS,
    SMOKE_NOTE,
    caution_about_time,
    give_verdicts,
    tell_speed_up,
)
from trainact.lab.text import count_epochs

__all__ = ["Chapter", "ask_question", "list_environments", "list_pictures", "write_chapters"]

Picture = Literal["accuracy", "budgets", "gradients"]
GRADIENTS_DIFFER = (
    "The gradient norm is that of what the optimizer gets. TrAct's is multiplied by the inverse of "
    "its inputs' second moment, so that its norm is on another scale than plain's."
)


@dataclass(frozen=True)
class Chapter:
    """A heading and what stands under it, in the order of the fields."""

    title: str
    sentences: tuple[str, ...] = ()
    lists: tuple[tuple[str, tuple[str, ...]], ...] = ()  # each under its own heading
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""


def ask_question(answers: Answers, records: Sequence[Record]) -> str:
    """Return the question of the comparison in one sentence."""
    if not records:
        return "Nothing was compared: there are no records of runs."
    others = [name_arm(arm) for arm in answers.arms if arm != BASELINE] or ["nothing else"]
    models = _join_distinct([record["model"]["name"] for record in records])
    data = _join_distinct([_describe_data(record["data"]) for record in records])
    return (
        f"{models} on {data}, plain against {' / '.join(others)}: trained from the same seeds, how "
        "much better does it end, how much sooner does it get there, and what does that cost?"
    )


def write_chapters(
    answers: Answers, records: Sequence[Record], command: str
) -> tuple[Chapter, ...]:
    """Return all chapters; each says what is missing where there is nothing to tell."""
    several = len(answers.budgets) > 1
    runs: tuple[Picture, ...] = ("accuracy", "gradients") if answers.runs else ()
    final, speed_ups = make_final_grid(answers), make_speed_up_grid(answers)
    crossings, costs = make_crossing_grid(answers), make_cost_grid(answers)
    no_pair = ("No arm has a complete run beside one of plain.",)
    return (
        Chapter(
            "Verdict",
            lists=_list_verdicts(answers),
            notes=(HOW_TO_READ_INTERVALS,) if any(d.n > 1 for d in answers.differences) else (),
        ),
        Chapter(
            "Accuracy at the end",
            sentences=_tell_metric(answers),
            grids=_keep(final)
            + _keep(make_other_grid(answers))
            + _keep(make_besides_grid(records)),
        ),
        Chapter("Curves", pictures=runs, notes=(GRADIENTS_DIFFER,) if runs else ()),
        Chapter(
            "How much sooner",
            sentences=() if speed_ups.rows else (_explain_none(several),),
            grids=_keep(speed_ups),
            pictures=("budgets",) if several else (),
            notes=(HOW_SPEED_UPS_ARE_FOUND,) if speed_ups.rows else (),
        ),
        Chapter(
            "Crossings inside one run",
            sentences=() if crossings.rows else no_pair,
            grids=_keep(crossings),
            notes=(CROSSINGS_ARE_NOT_SPEED_UPS,) if crossings.rows else (),
        ),
        Chapter(
            "What it costs",
            sentences=() if costs.rows else no_pair,
            grids=_keep(costs),
            notes=(caution_about_time(answers.jobs),) if costs.rows else (),
        ),
        Chapter(
            "Every run",
            grids=_keep(make_run_grid(answers)),
            notes=tuple(_tell_recipes(answers, records)),
        ),
        Chapter("Made with", grids=_keep(_make_environment_grid(records))),
        Chapter("To repeat it", command=command),
    )


def list_pictures(chapters: Sequence[Chapter]) -> list[Picture]:
    """Return the pictures that chapters show, in order."""
    return [picture for chapter in chapters for picture in chapter.pictures]


def list_environments(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return each environment that records were made in once, but for the date: the first of it."""
    distinct: list[dict[str, Any]] = []
    for record in records:
        made = dict(record["environment"])
        if not any({**made, "date": None} == {**known, "date": None} for known in distinct):
            distinct.append(made)
    return distinct


def _list_verdicts(answers: Answers) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the verdicts of each budget, the speed-ups at the largest, and what is not told."""
    by_budget: dict[int, list[str]] = {}
    for budget, told in give_verdicts(answers):
        by_budget.setdefault(budget, []).append(told)
    largest = max((found.budget for found in answers.speed_ups), default=None)
    note = SMOKE_NOTE if answers.kind == "smoke" else ""
    sooner = [note + tell_speed_up(f) for f in answers.speed_ups if f.budget == largest]
    ends = [(f"At the end of {count_epochs(budget)}", told) for budget, told in by_budget.items()]
    lists = [*ends[:1], ("How much sooner", sooner), *ends[1:], ("Not told", answers.missing)]
    return tuple((heading, tuple(told)) for heading, told in lists if told)


def _tell_metric(answers: Answers) -> tuple[str, ...]:
    """Return what accuracy means on this page, where it is not the part of images that is right."""
    metrics = {run.metric for run in answers.runs} - {ACCURACY.name}
    return tuple(f"Accuracy means {metric} on this page, in per cent." for metric in metrics)


def _keep(grid: Grid) -> tuple[Grid, ...]:
    return (grid,) if grid.rows else ()


def _explain_none(several: bool) -> str:
    if several:
        return "No speed-up can be told; the verdict says why."
    return "This takes two or more budgets (epochs of a whole run); there is one or none here."


def _tell_recipes(answers: Answers, records: Sequence[Record]) -> list[str]:
    """Return for each arm what its recipe has otherwise than plain's, at the same budget."""
    firsts: dict[tuple[str, int], Record] = {}
    for record in records:
        firsts.setdefault((record["arm"], record["budget"]), record)
    told = []
    for arm in answers.arms:
        differing: dict[str, list[int]] = {}
        for budget in answers.budgets:
            pair = firsts.get((arm, budget)), firsts.get((BASELINE, budget))
            if arm != BASELINE and pair[0] is not None and pair[1] is not None:
                found = [d.describe(BASELINE) for d in list_differences(pair[0], pair[1])]
                differing.setdefault("; ".join(found) or "nothing", []).append(budget)
        for fields, budgets in differing.items():
            where = f" at {', '.join(map(str, budgets))} epochs" if len(differing) > 1 else ""
            told.append(f"The recipe of {name_arm(arm)} differs from plain's{where} in {fields}.")
    return told


def _make_environment_grid(records: Sequence[Record]) -> Grid:
    made = [record["environment"] for record in records]
    dates = sorted(str(row.get("date")) for row in made)
    facts = {
        "trainact": [row.get("trainact") for row in made],
        "commit": [_describe_commit(row) for row in made],
        "packages": [
            ", ".join(f"{name} {v}" for name, v in (row.get("packages") or {}).items())
            for row in made
        ],
        "python": [row.get("python") for row in made],
        "system": [row.get("system") for row in made],
        "processor": [
            f"{row.get('processor')}, {row.get('cores')} cores, {count_threads(row)}"
            for row in made
        ],
        "accelerator": [row.get("accelerator") or "none" for row in made],
        "model": [_describe_model(record["model"]) for record in records],
        "data": [_describe_data(record["data"]) for record in records],
        "data fingerprint": [record["data"]["fingerprint"] for record in records],
        "made": [dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"]
        if dates
        else [],
    }
    rows = tuple((name, _join_distinct(values)) for name, values in facts.items() if values)
    return Grid("Versions, hardware and data of the runs", ("what", "value"), rows, words=2)


def _describe_commit(made: dict[str, Any]) -> str:
    if not made.get("commit"):
        return "not in git"
    return f"{made['commit']} ({'clean' if made.get('clean') else 'with uncommitted changes'})"


def _describe_data(data: dict[str, Any]) -> str:
    return (
        f"{data['name']} ({data.get('train_images')} training and {data.get('test_images')} test "
        f"images, {data.get('classes')} classes)"
    )


def _describe_model(model: dict[str, Any]) -> str:
    layers = ", ".join(model.get("first_layers") or ["unknown"])
    count = model.get("parameters")
    size = "an unknown number of" if count is None else f"{count:,}"
    return f"{model['name']}, {size} parameters, first layer {layers}"


def _join_distinct(values: Sequence[Any]) -> str:
    return "; ".join(dict.fromkeys(map(str, values)))
