"""Fill ``docs/when.md``: when TrAct helps and when not, from records and the paper's tables."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tools.evidence import NO_RECORD, Evidence
from trainact.lab.analysis.answers import Difference, Verdict, answer
from trainact.lab.paper.claims import read_claim
from trainact.lab.paper.tables import PrintedTable, list_networks, read_tables
from trainact.lab.paper.values import TRACT_ARMS, Key, PrintedValue
from trainact.lab.recipes.arms import BASELINE
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.records.record import Record
from trainact.lab.report.experiment_page import ExperimentPage
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.report.wording import describe_difference, format_difference
from trainact.lab.text import count, count_epochs
from trainact.options import DEFAULT_LAM

__all__ = ["PrintedPair", "list_printed_pairs", "write_when"]

TRACT = f"tract-{DEFAULT_LAM:g}"
WHITENED, FROZEN = f"eigen+{TRACT}", "eigen+frozen"
GROUPS: dict[Verdict, str] = {
    "better": "Better",
    "worse": "Worse",
    "one seed": "One seed, so no interval",
    "unclear": "No clear difference",
}
"""Titles of the groups of results."""
ACCURACIES = ("top1", "map")
TIMED = {
    "time-cifar10-vit": "a small ViT on CIFAR-10",
    "time-vit-s": "ViT-S on ImageNet",
    "time-vit-b": "ViT-B on ImageNet",
}
"""The paper's claims on the training time with TrAct, and their networks."""


class Result(NamedTuple):
    """One recipe, and TrAct's difference to plain at the largest budget."""

    name: str
    page: ExperimentPage
    to_plain: Difference


class PrintedPair(NamedTuple):
    """The numbers that the paper prints for one setting."""

    key: Key  # of the number with TrAct
    plain: PrintedValue
    tract: PrintedValue

    @property
    def difference(self) -> float:
        """Return TrAct minus plain, without the rounding error of a subtraction."""
        return round(self.tract.mean - self.plain.mean, 6)


def write_when(evidence: Evidence, bench: dict[str, Any]) -> dict[str, str]:
    """Return the text of each marked place, by its name."""
    results = [
        Result(name, page, found[0])
        for name, page in evidence.items()
        if page is not None and (found := _list_differences(page))
    ]
    places = {
        "when-summary": _describe_summary,
        "when-results": _list_groups,
        "when-control": _compare_with_control,
        "when-start": _compare_starts,
        "when-budgets": _render_budgets,
        "when-lams": _render_lams,
    }
    return {
        **{name: write(results) if results else NO_RECORD for name, write in places.items()},
        "when-paper": _render_paper(),
        "when-paper-losses": _list_paper_losses(),
        "when-cost": _describe_cost(bench),
        "when-gpu-cost": _describe_gpu_cost(),
    }


def _list_differences(page: ExperimentPage, arm: str = TRACT) -> list[Difference]:
    """Return the differences of an arm to plain, the largest budget first."""
    found = page.answers.differences if page.answers is not None else ()
    return sorted((d for d in found if d.arm.name == arm), key=lambda d: -d.budget)


def _compare(result: Result, *arms: str) -> list[Difference]:
    """Return the difference of each arm to the next, over the seeds that all completed.

    They are those of the largest budget that has such a seed; none if no budget has one.
    """
    complete = [r for r in result.page.study.records if r["status"] == "complete"]
    shared: list[Record] = []
    for budget in sorted({r["budget"] for r in complete}, reverse=True):
        records = [r for r in complete if r["budget"] == budget and r["arm"] in arms]
        seeds = [{r["seed"] for r in records if r["arm"] == arm} for arm in arms]
        shared = [r for r in records if r["seed"] in set.intersection(*seeds)]
        if shared:
            break
    return [
        difference
        for arm, other in itertools.pairwise(arms)
        for difference in answer(shared, against={arm: other}).others
    ]


def _describe_summary(results: Sequence[Result]) -> str:
    """Return how often TrAct was better, worse and neither."""
    found = [result.to_plain.verdict for result in results]
    better, worse, single, unclear = (found.count(verdict) for verdict in GROUPS)
    text = (
        f"On {count(len(results), 'small recipe')} of our own, TrAct with λ = {DEFAULT_LAM:g} was "
        f"better than plain training on {better}, worse on {worse} and not clearly different on "
        f"{unclear}"
    )
    return f"{text}; {single} with one seed." if single else f"{text}."


def _list_groups(results: Sequence[Result]) -> str:
    """Return a list for each group: the results in sentences."""
    blocks = []
    for verdict, title in GROUPS.items():
        lines = [
            f"- {result.name}, {count_epochs(result.to_plain.budget)}: "
            f"{describe_difference(result.to_plain)}"
            for result in results
            if result.to_plain.verdict == verdict
        ]
        if lines:
            blocks += [f"**{title}**", "\n".join(lines)]
    return "\n\n".join(blocks)


def _compare_with_control(results: Sequence[Result]) -> str:
    """Return a table: TrAct against the control, and the control against plain.

    The control is plain training with another learning rate for the first layer.
    """
    rows = []
    for result in results:
        assert result.page.answers is not None
        planned = find_experiment(result.name).arms
        done = [s.arm for s in result.page.answers.summaries if s.budget == result.to_plain.budget]
        controls = [arm for arm in (*done, *planned) if arm.kind == "lr"]
        if not controls:
            continue
        found = _compare(result, TRACT, controls[0].name, BASELINE)
        shown = ["not run yet"] * 4
        if found:
            shown = [str(found[0].budget), *map(format_difference, found), str(found[0].n)]
        rows.append((result.name, controls[0].title, *shown))
    head = ("recipe", "control", "epochs", "TrAct to control", "control to plain", "n")
    return render_markdown(Grid("", head, tuple(rows), text_columns=2)) if rows else NO_RECORD


def _compare_starts(results: Sequence[Result]) -> str:
    """Return a table: TrAct from a whitened start against TrAct alone and a frozen start."""
    rows = []
    for result in results:
        for other in (TRACT, FROZEN):
            for found in _compare(result, WHITENED, other):
                shown = (str(found.budget), format_difference(found), str(found.n))
                rows.append((result.name, found.arm.title, found.against.title, *shown))
    head = ("recipe", "arm", "compared with", "epochs", "difference", "n")
    return render_markdown(Grid("", head, tuple(rows), text_columns=3)) if rows else NO_RECORD


def _render_budgets(results: Sequence[Result]) -> str:
    """Return TrAct's difference at every budget of the recipes that have several."""
    rows = tuple(
        (result.name, str(found.budget), format_difference(found), str(found.n))
        for result in results
        for found in reversed(_list_differences(result.page))
        if len(_list_differences(result.page)) > 1
    )
    return _render(("recipe", "epochs", "TrAct to plain", "n"), rows)


def _render_lams(results: Sequence[Result]) -> str:
    """Return the difference to plain for every λ, at the largest budget."""
    rows = []
    for result in results:
        assert result.page.answers is not None
        for found in result.page.answers.differences:
            if found.arm.kind == "tract" and found.budget == result.to_plain.budget:
                rows.append(
                    (result.name, f"{found.arm.lam:g}", format_difference(found), str(found.n))
                )
    return _render(("recipe", "λ", "TrAct to plain", "n"), tuple(rows))


def _render(head: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    return render_markdown(Grid("", head, rows)) if rows else NO_RECORD


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


def _render_paper() -> str:
    """Return how often the paper's own numbers with TrAct are above the plain ones."""
    rows = []
    for table, pairs in _list_accuracy_tables():
        found = [pair.difference for pair in pairs]
        signs = (sum(d > 0 for d in found), sum(d == 0 for d in found), sum(d < 0 for d in found))
        decimals = pairs[0].tract.decimals
        mean, low, high = (
            f"{d:+.{decimals}f}" for d in (statistics.fmean(found), min(found), max(found))
        )
        place = " and ".join(f"Table {number}" for number in table.numbers)
        rows.append((place, table.title, *map(str, signs), mean, f"{low} to {high}"))
    head = ("in the paper", "content", "higher", "equal", "lower", "mean difference", "range")
    return render_markdown(Grid("", head, tuple(rows), text_columns=2))


def _list_paper_losses() -> str:
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


def _describe_cost(bench: dict[str, Any]) -> str:
    """Return the share of TrAct's own work in a training step, over the measured networks."""
    shares = {row["name"]: 100 * row["extra_over_plain"]["median"] for row in bench["step"]}
    if not shares:
        return "No measurement yet."
    least, most = min(shares, key=lambda name: shares[name]), max(shares, key=lambda n: shares[n])
    return (
        f"Of {count(len(shares), 'measured training step')}, TrAct's own work takes from "
        f"{shares[least]:.2f} % ({least}) to {shares[most]:.2f} % ({most}) of the plain step."
    )


def _describe_gpu_cost() -> str:
    """Return the extra training time that the paper states for GPUs."""
    stated = ", ".join(f"{read_claim(name).stated} % for {net}" for name, net in TIMED.items())
    return f"We have not measured GPUs yet. The paper states a longer training time by {stated}."
