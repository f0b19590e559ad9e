"""Fill README's paragraph on the fast CIFAR-10 recipe: what one command takes and gives."""

from collections.abc import Sequence
from pathlib import Path

from tools.opening import RIVAL
from tools.reproduce import read_full_studies
from trainact.lab.cost.estimates import count_run, read_throughputs
from trainact.lab.environment import describe_hardware
from trainact.lab.metric import ACCURACY, SIX_VIEWS, Metric, read_percent
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.records.record import Record, list_environments
from trainact.lab.text import format_duration

__all__ = ["COMMAND", "write_fast_run"]

RECIPE, ARMS, EPOCHS, SEED = "cifar10-speed", ("plain", "eigen+tract-0.1"), 10, 0
COMMAND = f"trainact run {RECIPE} --arms {','.join(ARMS)} --epochs {EPOCHS} --seeds {SEED}"


def write_fast_run(results: Path) -> dict[str, str]:
    """Return the text of the marked place, from the records of the command's own runs.

    Without records the time is estimated.
    """
    records = [
        record
        for study in read_full_studies(results)
        if study.name == RECIPE
        for record in study.records
        if (record["budget"], record["seed"], record["status"]) == (EPOCHS, SEED, "complete")
    ]
    by_arm = {record["arm"]: record for record in records}
    text = _estimate()
    if all(arm in by_arm for arm in ARMS):
        text = _describe([by_arm[arm] for arm in ARMS], by_arm.get(RIVAL))
    return {"fast-run": f"    {COMMAND}\n\n{text}"}


def _describe(records: Sequence[Record], rival: Record | None) -> str:
    """Return the time of the records' runs, one after another, and the accuracies."""
    hardware = sorted(
        {describe_hardware(row) for record in records for row in list_environments(record)}
    )
    plain, views = (
        " and ".join(_format(metric, record) for record in records)
        for metric in (ACCURACY, SIX_VIEWS)
    )
    text = (
        f"It took {format_duration(sum(record['seconds'] for record in records))} on "
        f"{', '.join(hardware)} and gave {plain} (plain, and whitened start with TrAct); with six "
        f"views of each test image {views}."
    )
    if rival is None:
        return text
    other, six = (_format(metric, rival) for metric in (ACCURACY, SIX_VIEWS))
    return f"{text} A frozen whitened start (`--arms {RIVAL}`) gave {other}, with six views {six}."


def _format(metric: Metric, record: Record) -> str:
    return f"{read_percent(metric, record['epochs'][-1]):.2f} %"


def _estimate() -> str:
    cpu = read_throughputs()[0]
    runs = [
        count_run(run)
        for run in find_experiment(RECIPE).plan()
        if (run.schedule.epochs, run.run.seed) == (EPOCHS, SEED) and run.arm in ARMS
    ]
    works = [work for work in runs if work is not None]
    assert len(works) == len(ARMS)
    seconds = cpu.estimate_seconds(sum(works))
    return (
        f"Estimated from its multiply-adds, it takes {format_duration(seconds)} on {cpu.hardware}; "
        "no record yet."
    )
