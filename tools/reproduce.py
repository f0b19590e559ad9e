"""``docs/reproduce.md``: the paper's tables and figures, what makes them, and what that takes."""

import re
from collections.abc import Sequence
from pathlib import Path

from trainact.errors import TrActValueError
from trainact.lab.analysis.studies import Study, find_studies
from trainact.lab.cost.estimates import (
    CAUTION,
    Throughput,
    estimate_experiment,
    read_throughputs,
)
from trainact.lab.environment import describe_hardware
from trainact.lab.paper import list_tables, read_figures, read_table, read_times
from trainact.lab.paper.faithful import find_faithful
from trainact.lab.recipes.experiment import Experiment, find_experiment, list_experiments
from trainact.lab.records.results import list_record_files
from trainact.lab.report.tables import Grid, render_markdown
from trainact.lab.running.plan import format_command
from trainact.lab.text import count_epochs

__all__ = ["list_places", "write_reproduction"]

METHOD = {
    "Figure 1": (
        "How far an update of z is from its gradient: language, vision, TrAct",
        "`trainact figure1`",
    ),
    "Figure 2": ("The method in code", "[method.md](method.md)"),
    "Section 4.6": ("What TrAct costs", "`trainact bench`, see [cost.md](cost.md)"),
}
"""What no recipe makes."""
NODES, GPUS, ARRAY = 2, 8, 20
"""Of the commands that are shown: nodes, GPUs of a node, jobs of an array."""
FITS = 256
"""Images of a batch that one GPU is taken to hold; what is more is done in parts."""
JOB_SECONDS = 48 * 3600
"""The time of a job in the SLURM scripts."""
MINUTES = "minutes of a core"


def write_reproduction(results: Path) -> dict[str, str]:
    """Return what stands in each marked place of the page, by its name."""
    experiments = [find_experiment(name) for name in list_experiments()]
    printed = [experiment for experiment in experiments if experiment.paper]
    own = [experiment for experiment in experiments if not experiment.paper]
    cpu, gpu = read_throughputs()
    studies = read_full_studies(results)
    return {
        "reproduce-places": render_markdown(make_place_grid(printed)),
        "reproduce-throughput": f"{gpu} {CAUTION}",
        "reproduce-cost": render_markdown(make_time_grid(printed, gpu, studies)),
        "reproduce-commands": "\n\n".join(write_commands(e, gpu) for e in printed),
        "reproduce-own": render_markdown(make_time_grid(own, cpu, studies)),
        "reproduce-own-throughput": str(cpu),
    }


def read_full_studies(results: Path) -> list[Study]:
    """Return the experiments that were run for real and whose records are below a folder.

    Raises:
        TrActValueError: a record is damaged.
    """
    if not list_record_files([results]):
        return []
    studies, damages = find_studies([results])
    if damages:
        raise TrActValueError(damages[0].reason)
    return [study for study in studies if study.kind == "full"]


def list_places(paper: str) -> list[str]:
    """Return the tables and figures that a recipe's field ``paper`` names.

    >>> list_places("Tables 1, 6 and 7"), list_places("Figure 5 and Table 2")
    (['Table 1', 'Table 6', 'Table 7'], ['Figure 5', 'Table 2'])
    """
    places, kind = [], ""
    for word, number in re.findall(r"(Figure|Table)s?|(\d+)", paper):
        kind = word or kind
        if number:
            places.append(f"{kind} {number}")
    return places


def make_place_grid(experiments: Sequence[Experiment]) -> Grid:
    """Return every table and figure of the paper with what makes it."""
    titles = {figure.number: figure.title for figure in read_figures()}
    for table in map(read_table, list_tables()):
        titles |= dict.fromkeys(re.findall(r"Table \d+", table.place), table.title)
    rows = {place: (title, made) for place, (title, made) in METHOD.items()}
    for place, title in titles.items():
        recipes = [e.name for e in experiments if place in list_places(e.paper)]
        rows[place] = title, ", ".join(f"[{name}](#{name})" for name in recipes)
    ordered = sorted(rows, key=lambda place: (place.split()[0], float(place.split()[1])))
    body = tuple((place, *rows[place]) for place in ordered)
    return Grid("Tables and figures", ("in the paper", "what it shows", "made by"), body, words=3)


def make_time_grid(
    experiments: Sequence[Experiment], throughput: Throughput, studies: Sequence[Study]
) -> Grid:
    """Return the time of each recipe's runs and what was run; of a GPU also what the paper says."""
    rows = []
    for experiment in experiments:
        cost = estimate_experiment(experiment)
        rows.append(
            (
                f"`{experiment.name}`",
                str(cost.runs),
                _show_time(throughput, cost.longest),
                _show_time(throughput, cost.total),
                *([_tell_printed(experiment.name)] if throughput.device == "cuda" else []),
                _tell_measured(experiment, studies),
            )
        )
    unit, printed = ("GPU hours", ["the paper's"]) if throughput.device == "cuda" else (MINUTES, [])
    head = ("recipe", "runs", f"longest run, {unit}", f"all runs, {unit}", *printed)
    return Grid("What it takes", (*head, "measured so far"), tuple(rows))


def write_commands(experiment: Experiment, gpu: Throughput) -> str:
    """Return the section of one recipe: a heading, its title, and the commands."""
    command = alone = format_command(experiment)
    parts = experiment.recipe.data.batch_size // FITS
    if parts > 1:  # one GPU holds a part of the batch
        alone += f" \\\n    run.accumulation={parts}"
    lines = ["# one GPU", f"trainact {alone}"]
    if experiment.recipe.data.storage == "stream":
        lines += [
            f"# {NODES} nodes of {GPUS} GPUs: on each node, HOST being the first",
            f"torchrun --nnodes {NODES} --nproc-per-node {GPUS} \\",
            "    --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m trainact.lab \\",
            f"    {command}",
            "# the same by SLURM",
            f"sbatch --nodes {NODES} --gpus-per-node {GPUS} docs/slurm/nodes.sh \\",
            f"    {command}",
        ]
    cost = estimate_experiment(experiment)
    longest = gpu.estimate_seconds(cost.longest)
    if longest is not None and longest < JOB_SECONDS:
        lines += [
            "# several nodes by SLURM, each run on one GPU",
            f"sbatch --array 1-{min(cost.runs, ARRAY)} docs/slurm/array.sh {alone}",
        ]
    code = "\n".join(f"    {line}" for text in lines for line in text.splitlines())
    return f"### {experiment.name}\n\n{experiment.title}: {experiment.paper}.\n\n{code}"


def _show_time(throughput: Throughput, work: float | None) -> str:
    seconds = throughput.estimate_seconds(work)
    if seconds is None:
        return "-"
    time = seconds / (3600 if throughput.device == "cuda" else 60)
    return f"{time:,.0f}" if time >= 10 else f"{time:.2g}"


def _tell_printed(recipe: str) -> str:
    told = [
        f"{time.gpu_hours:,.{0 if time.gpu_hours >= 10 else 1}f} for {count_epochs(time.budget)} "
        f"({time.gpus} {time.gpu})"
        for time in read_times()
        if (time.recipe, time.arm) == (recipe, "plain")
    ]
    return "; ".join(told) or "-"


def _tell_measured(experiment: Experiment, studies: Sequence[Study]) -> str:
    records = find_faithful(
        experiment.name,
        [r for study in studies if study.name == experiment.name for r in study.records],
    )
    if not records:
        return "nothing"
    made = [record["environment"] for record in records]
    hardware = sorted({describe_hardware(e) for e in made})
    return f"{len(records)} of {len(experiment.plan())} runs on {', '.join(hardware)}"
