"""Fill ``docs/reproduce.md``: the command and the cost of every table and figure of the paper."""

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainact.errors import TrActValueError
from trainact.lab.analysis.studies import Study, find_studies
from trainact.lab.commands.data import list_sets
from trainact.lab.cost.estimates import (
    CAUTION,
    Throughput,
    estimate_experiment,
    estimate_runs,
    read_throughputs,
)
from trainact.lab.environment import describe_hardware
from trainact.lab.paper.claims import check_claims, read_claim
from trainact.lab.paper.faithful import find_faithful
from trainact.lab.paper.hyperparameters import needs_tuning
from trainact.lab.paper.rules import list_cases
from trainact.lab.paper.tables import read_figures, read_table, read_tables, read_times
from trainact.lab.paper.values import Key, Value
from trainact.lab.recipes.experiment import Experiment, find_experiment, list_experiments
from trainact.lab.records.record import Record, list_environments
from trainact.lab.records.results import list_record_files
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.report.paper_comparison import measure_study
from trainact.lab.running.plan import PlannedRun, Shard, format_command, place_runs
from trainact.lab.text import count_epochs

__all__ = ["write_reproduction"]

FIGURES_WITHOUT_RECIPE = (
    (
        "Figure 1",
        "Cosine of an update of z and its gradient: language, vision, TrAct",
        "`trainact figure1`",
    ),
    ("Figure 2", "The method in code", "[method.md](method.md)"),
)
COST = "`trainact bench --device cuda`, see [cost.md](cost.md)"
TIME_CLAIMS = ("time-cifar10-vit", "time-vit-s", "time-vit-b")
NODES, GPUS, ARRAY = 2, 8, 20
"""In the commands shown: nodes, GPUs per node, jobs of an array."""
MACHINES = (4, 8)
"""GPUs of one machine in the commands shown."""
GPU_BATCH = 256
"""Images that are assumed to fit on one GPU; larger batches are accumulated."""
MARGIN = 1.5
"""Time limit of a job, as a multiple of the estimated time of its share."""
LONGEST_JOB = 48
"""Hours of the longest time limit shown; a job that needs more queues itself again."""
LONGEST_RUN = 7 * 24
"""Hours of the longest run that is shown on one GPU of a job array."""
MINUTES = "core minutes"


def write_reproduction(results: Path) -> dict[str, str]:
    """Return the text of each marked place of the page, by its name."""
    experiments = [find_experiment(name) for name in list_experiments()]
    printed = [experiment for experiment in experiments if experiment.paper]
    own = [experiment for experiment in experiments if not experiment.paper]
    cpu, gpu = read_throughputs()
    studies = read_full_studies(results)
    return {
        "reproduce-places": render_markdown(make_place_grid()),
        "reproduce-throughput": f"{gpu} {CAUTION}",
        "reproduce-cost": render_markdown(make_time_grid(printed, gpu, studies)),
        "reproduce-ratios": render_markdown(make_ratio_grid(studies)),
        "reproduce-commands": "\n\n".join(write_commands(e, gpu) for e in printed),
        "reproduce-own": render_markdown(make_time_grid(own, cpu, studies)),
        "reproduce-own-throughput": str(cpu),
        "data-sets": render_markdown(list_sets()),
    }


def read_full_studies(results: Path) -> list[Study]:
    """Return the experiments with full runs below a folder.

    Raises:
        TrActValueError: a record is damaged.
    """
    if not list_record_files([results]):
        return []
    studies, damages = find_studies([results])
    if damages:
        raise TrActValueError(damages[0].reason)
    return [study for study in studies if study.kind == "full"]


def make_place_grid() -> Grid:
    """Return every table and figure of the paper with the recipes that reproduce it."""
    figures = [(f.number, f.title, _link_recipes(f.recipes)) for f in read_figures()]
    tables = {
        number: (f"Table {number}", table.title, _link_recipes(table.recipes))
        for table in read_tables()
        for number in table.numbers
    }
    times = _link_recipes(read_table("runtime").aliases)
    cost = ("Section 4.6", "The cost of TrAct", f"{times}, {COST}")
    rows = (*FIGURES_WITHOUT_RECIPE, *figures, cost, *(tables[n] for n in sorted(tables)))
    head = ("in the paper", "content", "reproduced by")
    return Grid("Tables and figures", head, rows, text_columns=3)


def make_time_grid(
    experiments: Iterable[Experiment], throughput: Throughput, studies: Sequence[Study]
) -> Grid:
    """Return the estimated and the known time of each recipe's runs, and the runs done.

    Known are the paper's GPU hours, and the times of our own records, from a CPU in use.
    A run that a recipe above has too is counted once, but for recipes whose times are the result.
    The last row is the sum.
    """
    is_gpu = throughput.device == "cuda"
    counted: set[str] = set()
    rows: list[tuple[str, ...]] = []
    seconds, runs, new = 0.0, 0, 0
    for experiment in experiments:
        own = sum(recipe.run.arm in experiment.own_arms for recipe in experiment.plan())
        cost = estimate_experiment(experiment, counted)
        total = throughput.estimate_seconds(cost.total)
        longest = throughput.estimate_seconds(cost.longest)
        seconds, runs, new = seconds + (total or 0.0), runs + cost.runs, new + cost.new
        rows.append(
            (
                f"`{experiment.name}`",
                *(str(cost.runs), str(cost.new)),
                *([str(own or "-")] if is_gpu else []),
                *(_format_time(throughput, time) for time in (longest, total)),
                _format_printed_times(experiment.name)
                if is_gpu
                else _format_time(throughput, _measure_longest(experiment, studies)),
                _describe_done(experiment, studies),
            )
        )
    every = ("all", str(runs), str(new), *([""] if is_gpu else []), "")
    rows.append((*every, _format_time(throughput, seconds), "", ""))
    unit = "GPU hours" if is_gpu else MINUTES
    head = ("recipe", "runs", "new", *(["ours"] if is_gpu else []))
    known = "paper" if is_gpu else f"longest run as recorded, {unit}"
    times = (f"longest run, {unit}", f"new runs, {unit}", known)
    return Grid("Estimated time", (*head, *times, "runs done"), tuple(rows))


def make_ratio_grid(studies: Sequence[Study]) -> Grid:
    """Return the paper's claims on training time, the times behind them, and what was measured."""
    values: dict[Key, Value] = {}
    for study in studies:
        values |= measure_study(study)
    rows = []
    for name, result in zip(TIME_CLAIMS, check_claims(values, TIME_CLAIMS), strict=True):
        claim = read_claim(name)
        recipes = {case.key.recipe for table in claim.cases for case in list_cases(values, **table)}
        plain, tract = (time for time in read_times() if time.recipe in recipes)
        rows.append(
            (
                claim.says,
                f"Section {claim.section}",
                f"{plain.gpus} {plain.gpu}",
                f"{_format_clock(plain.hours)} and {_format_clock(tract.hours)}",
                claim.stated,
                result.computed or "none",
                _link_recipes(recipes & set(read_table("runtime").aliases)),
            )
        )
    head = ("claim", "source", "GPUs", "plain and TrAct", "stated", "measured", "recipe")
    return Grid("Claims on training time", head, tuple(rows), text_columns=3)


def write_commands(experiment: Experiment, gpu: Throughput) -> str:
    """Return the section of one recipe: a heading, its title, and the commands."""
    if experiment.name in read_table("runtime").aliases:
        command = f"trainact {format_command(experiment)}"
        return _write_section(
            experiment, ["# one GPU, on a machine that does nothing else", command]
        )
    tuned = needs_tuning(experiment)
    command, alone = (_split_batch(experiment, gpus, tuned) for gpus in (NODES * GPUS, 1))
    runs = place_runs(experiment.plan(), Path())
    lines = ["# one GPU", f"trainact {alone}"]
    if tuned:
        reason = "# first choose the learning rates: the paper prints none for this experiment"
        lines = [reason, f"trainact {format_command(experiment, 'tune')}", *lines]
    for gpus in sorted({min(gpus, len(runs)) for gpus in MACHINES}):
        lines += [f"# {gpus} GPUs in one machine, one run on each"]
        lines += [f"trainact {alone} --jobs {gpus}"]
    if experiment.recipe.data.storage == "stream":
        for gpus in MACHINES:
            lines += [
                f"# {gpus} GPUs in one machine, one run on all of them",
                f"torchrun --nproc-per-node {gpus} -m trainact.lab \\",
                f"    {_split_batch(experiment, gpus, tuned)}",
            ]
        lines += [
            f"# {NODES} nodes with {GPUS} GPUs each; run on every node, HOST is the first",
            f"torchrun --nnodes {NODES} --nproc-per-node {GPUS} \\",
            "    --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m trainact.lab \\",
            f"    {command}",
            "# the same with SLURM",
            f"sbatch --nodes {NODES} --gpus-per-node {GPUS} docs/slurm/nodes.sh \\",
            f"    {command}",
        ]
    jobs = min(len(runs), ARRAY)
    hours = find_job_hours(runs, jobs, gpu)
    if hours is not None:
        lines += [
            "# SLURM job array, each run on one GPU",
            f"sbatch --array 1-{jobs} --time {hours}:00:00 docs/slurm/array.sh \\",
            f"    {alone}",
        ]
    return _write_section(experiment, lines)


def _write_section(experiment: Experiment, lines: Sequence[str]) -> str:
    code = "\n".join(f"    {line}" for text in lines for line in text.splitlines())
    return f"### {experiment.name}\n\n{experiment.title}: {experiment.paper}.\n\n{code}"


def _split_batch(experiment: Experiment, gpus: int, tuned: bool) -> str:
    """Return the command of a recipe, with its batch in parts that fit on so many GPUs."""
    command = format_command(experiment, tuned=tuned)
    parts = experiment.recipe.data.batch_size // (GPU_BATCH * gpus)
    return command + (f" \\\n    run.accumulation={parts}" if parts > 1 else "")


def find_job_hours(runs: Sequence[PlannedRun], jobs: int, gpu: Throughput) -> int | None:
    """Return the time limit of array jobs: the longest estimated share of a job, with a margin.

    It is None if a run takes too long for one GPU, or its work is unknown.
    """
    shares = [Shard(job, jobs).choose(runs) for job in range(1, jobs + 1)]
    costs = [estimate_runs([run.recipe for run in share]) for share in shares]
    totals = [gpu.estimate_seconds(cost.total) for cost in costs]
    longest = [gpu.estimate_seconds(cost.longest) for cost in costs]
    known = [time for time in (*totals, *longest) if time is not None]
    if len(known) < 2 * jobs or max(time or 0.0 for time in longest) > LONGEST_RUN * 3600:
        return None
    share = max(time or 0.0 for time in totals)
    return min(math.ceil(MARGIN * share / 3600), LONGEST_JOB)


def _link_recipes(names: Iterable[str]) -> str:
    return ", ".join(f"[{name}](#{name})" for name in sorted(names))


def _format_time(throughput: Throughput, seconds: float | None) -> str:
    if seconds is None:
        return "-"
    time = seconds / (3600 if throughput.device == "cuda" else 60)
    return f"{time:,.0f}" if time >= 10 else f"{time:.2g}"


def _format_clock(hours: float) -> str:
    """Return a time as the paper prints it: hours and minutes, or seconds below an hour."""
    whole, minutes = divmod(round(60 * hours), 60)
    return f"{whole}:{minutes:02} h" if whole else f"{3600 * hours:.0f} s"


def _format_printed_times(recipe: str) -> str:
    times = [
        f"{time.gpu_hours:,.{0 if time.gpu_hours >= 10 else 1}f} for {count_epochs(time.budget)} "
        f"({time.gpus} {time.gpu})"
        for time in read_times()
        if (time.recipe, time.arm) == (recipe, "plain")
    ]
    return "; ".join(times) or "-"


def _list_done(experiment: Experiment, studies: Sequence[Study]) -> list[Record]:
    """Return the records of a recipe's own runs."""
    seeds = {run.run.seed for run in experiment.plan()}
    return [
        record
        for study in studies
        if study.name == experiment.name
        for record in find_faithful(experiment.name, study.records, study.tuning)
        if record["seed"] in seeds
    ]


def _measure_longest(experiment: Experiment, studies: Sequence[Study]) -> float | None:
    """Return the core seconds of a run of the largest budget: the median of those done."""
    times = [
        record["seconds"] * record["environment"]["threads"]
        for record in _list_done(experiment, studies)
        if record["budget"] == max(experiment.budgets) and record["status"] == "complete"
    ]
    return statistics.median(times) if times else None


def _describe_done(experiment: Experiment, studies: Sequence[Study]) -> str:
    plan, records = experiment.plan(), _list_done(experiment, studies)
    if not records:
        return "none"
    hardware = sorted(
        {describe_hardware(row) for record in records for row in list_environments(record)}
    )
    return f"{len(records)} of {len(plan)} runs on {' and '.join(hardware)}"
