"""Tables of a comparison, of the runs' environment and of a tuning."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from trainact.lab.analysis.answers import Answers
from trainact.lab.environment import count_threads
from trainact.lab.metric import SIX_VIEWS, TOP5, Metric, read_percent
from trainact.lab.recipes.arms import PLAIN, Arm, arm_of_recipe
from trainact.lab.records.record import Record, list_environments
from trainact.lab.report import wording
from trainact.lab.report.grid import Grid, print_grid
from trainact.lab.report.wording import format_number
from trainact.lab.text import format_value

__all__ = [
    "describe_data",
    "join_distinct",
    "make_accuracy_grid",
    "make_crossing_grid",
    "make_environment_grid",
    "make_pairwise_grid",
    "make_run_grid",
    "make_secondary_grid",
    "make_speed_up_grid",
    "make_time_grid",
    "make_tuning_grid",
    "print_accuracy",
]

MANY_CLASSES = 10
"""Top-5 accuracy is shown for more classes than this."""
SECONDARY_METRICS = (
    TOP5,
    Metric("accuracy of averaged weights (EMA)", "ema_correct", "test_seen"),
    SIX_VIEWS,
    Metric("mAP (all-point)", "map_all"),
    Metric("mAP (11-point) of averaged weights (EMA)", "ema_map"),
)


def make_accuracy_grid(answers: Answers) -> Grid:
    """Return the main table: accuracy, difference to plain and time of each arm and budget.

    Without the time if other runs may have shared the machine unnoticed (``answers.jobs`` is 0).
    """
    differences = {(d.arm, d.budget): d for d in answers.differences}
    ratios = {(ratio.arm, ratio.budget): ratio for ratio in answers.time_ratios}
    rows = []
    for summary in sorted(answers.summaries, key=lambda s: s.budget):
        key = summary.arm, summary.budget
        diverged = f" ({len(summary.diverged)} diverged)" if summary.diverged else ""
        rows.append(
            (
                summary.arm.title,
                str(summary.budget),
                wording.format_accuracy(summary),
                f"{summary.n}{diverged}",
                wording.format_difference(differences.get(key)),
                "1×" if summary.arm == PLAIN else wording.format_ratio(ratios.get(key)),
            )
        )
    head = ("arm", "epochs", "accuracy, %", "n", "difference to plain", "time per epoch")
    shown = len(head) if answers.jobs else len(head) - 1
    kept = tuple(row[:shown] for row in rows)
    return Grid("Final test accuracy: mean ± standard deviation over seeds", head[:shown], kept)


def make_pairwise_grid(answers: Answers) -> Grid:
    """Return the differences to arms other than plain."""
    rows = [
        (d.arm.title, d.against.title, str(d.budget), wording.format_difference(d), str(d.n))
        for d in sorted(answers.others, key=lambda d: d.budget)
    ]
    head = ("arm", "compared with", "epochs", "difference [95 %]", "n")
    return Grid("Differences to arms other than plain", head, tuple(rows), text_columns=2)


def make_secondary_grid(records: Sequence[Record]) -> Grid:
    """Return the mean over seeds of each secondary metric that every complete run recorded."""
    complete = [record for record in records if record["status"] == "complete"]
    many = any(record["data"].get("classes", 0) > MANY_CLASSES for record in complete)
    metrics = [
        metric
        for metric in SECONDARY_METRICS
        if all(metric.field in record["epochs"][-1] for record in complete)
        and (metric is not TOP5 or many)
    ]
    groups: dict[tuple[int, Arm], list[Record]] = {}
    for record in complete:
        arm = arm_of_recipe(record["arm"], record["recipe"])
        groups.setdefault((record["budget"], arm), []).append(record)

    def average(metric: Metric, runs: Sequence[Record]) -> str:
        values = (read_percent(metric, run["epochs"][-1]) for run in runs)
        return format_number(statistics.fmean(values))

    rows = tuple(
        (arm.title, str(budget), *(average(metric, groups[budget, arm]) for metric in metrics))
        for budget, arm in sorted(groups, key=lambda group: (group[0], group[1].sort_key))
    )
    head = ("arm", "epochs", *(f"{metric.name}, %" for metric in metrics))
    return Grid("Secondary metrics: mean over seeds", head, rows if metrics else ())


def make_speed_up_grid(answers: Answers) -> Grid:
    """Return every speed-up."""
    rows = [
        (
            found.arm.title,
            str(found.budget),
            format_number(found.target),
            "not reached" if found.epochs is None else format_number(found.epochs, 1),
            wording.format_speed_up(found),
            str(len(found.seeds)),
        )
        for found in answers.speed_ups
    ]
    head = ("arm", "plain's epochs E", "its accuracy, %", "arm's epochs e", "speed-up E / e", "n")
    return Grid("Epochs to plain's accuracy, interpolated between budgets", head, tuple(rows))


def make_crossing_grid(answers: Answers) -> Grid:
    """Return when runs first reach plain's final accuracy."""
    rows = [
        (
            found.arm.title,
            str(found.budget),
            "-" if found.median is None else format_number(found.median, 1),
            f"{found.never} of {found.n}",
        )
        for found in sorted(answers.crossings, key=lambda c: c.budget)
    ]
    head = ("arm", "epochs", "median epoch", "never")
    return Grid("First epoch at plain's final accuracy within a run", head, tuple(rows))


def make_time_grid(answers: Answers) -> Grid:
    """Return the training time per epoch relative to plain."""
    rows = [
        (
            ratio.arm.title,
            str(ratio.budget),
            wording.format_ratio(ratio),
            f"{format_number(ratio.low)}× to {format_number(ratio.high)}×",
            str(ratio.n),
            "same" if ratio.same_machine else "different",
        )
        for ratio in sorted(answers.time_ratios, key=lambda r: r.budget)
    ]
    head = ("arm", "epochs", "median", "range", "n", "machines")
    return Grid("Training time per epoch relative to plain", head, tuple(rows))


def make_run_grid(answers: Answers) -> Grid:
    """Return every run, complete or diverged."""
    rows = [
        (
            run.arm.title,
            str(run.budget),
            str(run.seed),
            "-" if run.accuracy is None else format_number(run.accuracy),
            "complete" if run.complete else f"diverged: {run.failure or 'no reason recorded'}",
            format_number(run.seconds, 1),
            run.recipe_id,
        )
        for run in answers.runs
    ]
    head = ("arm", "epochs", "seed", "accuracy, %", "status", "seconds", "recipe")
    return Grid("All runs", head, tuple(rows))


def make_tuning_grid(tuning: Mapping[str, Any]) -> Grid:
    """Return each value that ``trainact tune`` tried, its held-out accuracy, and the choice."""
    rows = []
    for row in tuning["tried"]:
        budget, name, value = row["budget"], row["field"], row["value"]
        others = ", ".join(f"{key} {format_value(other)}" for key, other in row["with"].items())
        accuracy = row["accuracy"]
        rows.append(
            (
                name,
                str(budget),
                format_value(value),
                "diverged" if accuracy is None else format_number(accuracy),
                "chosen" if tuning["chosen"][str(budget)][name] == value else "",
                str(len(row["seeds"])),
                others or "-",
            )
        )
    head = ("field", "epochs", "value", "held-out, %", "", "seeds", "with")
    arm = tuning.get("arm", "plain training")
    caption = f"Values tried in {arm}, on {tuning['held_out']} held-out images"
    return Grid(caption, head, tuple(rows))


def make_environment_grid(records: Sequence[Record]) -> Grid:
    """Return versions, hardware, model and data of the runs, each distinct value once."""
    environments = [row for record in records for row in list_environments(record)]
    dates = sorted(str(row.get("date")) for row in environments)
    facts: dict[str, list[Any]] = {
        "trainact": [row.get("trainact") for row in environments],
        "commit": [_describe_commit(row) for row in environments],
        "packages": [
            ", ".join(f"{name} {v}" for name, v in (row.get("packages") or {}).items())
            for row in environments
        ],
        "python": [row.get("python") for row in environments],
        "system": [row.get("system") for row in environments],
        "processor": [
            f"{row.get('processor')}, {row.get('cores')} cores, {count_threads(row)}"
            for row in environments
        ],
        "accelerator": [row.get("accelerator") or "none" for row in environments],
        "model": [_describe_model(record["model"]) for record in records],
        "data": [describe_data(record["data"]) for record in records],
        "data fingerprint": [record["data"]["fingerprint"] or "unknown" for record in records],
        "code": [code for record in records if (code := record["model"].get("code"))],
        "date": [" to ".join(dict.fromkeys((dates[0], dates[-1])))] if dates else [],
    }
    rows = tuple((name, join_distinct(values)) for name, values in facts.items() if values)
    return Grid("Versions, hardware and data of the runs", ("item", "value"), rows, text_columns=2)


def print_accuracy(answers: Answers, console: Console | None = None) -> None:
    """Print the main table, below a warning if the runs are smoke runs."""
    console = console or Console()
    if answers.kind == "smoke":
        console.print(Text(wording.SMOKE_WARNING, style="bold red"), soft_wrap=True)
    print_grid(make_accuracy_grid(answers), console)


def describe_data(data: Mapping[str, Any]) -> str:
    """Return a data set with its number of images and classes, if they are known."""
    if "classes" not in data:
        return str(data["name"])
    return (
        f"{data['name']} ({data.get('train_images')} training and {data.get('test_images')} test "
        f"images, {data.get('classes')} classes)"
    )


def join_distinct(values: Sequence[Any]) -> str:
    """Return the distinct values, separated by semicolons."""
    return "; ".join(dict.fromkeys(map(str, values)))


def _describe_commit(environment: Mapping[str, Any]) -> str:
    if not environment.get("commit"):
        return "not in git"
    state = "clean" if environment.get("clean") else "with uncommitted changes"
    return f"{environment['commit']} ({state})"


def _describe_model(model: Mapping[str, Any]) -> str:
    layers = ", ".join(model.get("first_layers") or ["unknown"])
    parameters = model.get("parameters")
    size = "an unknown number of" if parameters is None else f"{parameters:,}"
    return f"{model['name']}, {size} parameters, first layer {layers}"
