"""How much better at the end, how much sooner, and what it cost: the answers of a comparison.

All answers compare an arm with plain training over the seeds that both have, at one budget: the
epochs of a run with its own full schedule. ``answer`` makes them from records of finished runs.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainact.lab.analysis.outcomes import Outcome, Record, read_outcomes
from trainact.lab.analysis.pairs import (
    Cost,
    Crossing,
    Difference,
    compare_accuracy,
    compare_time,
    cross_inside,
    pair_runs,
)
from trainact.lab.analysis.speedups import SpeedUp, find_speed_ups
from trainact.lab.recipes.arms import BASELINE, name_arm, order_arms
from trainact.lab.statistics import compute_std
from trainact.lab.text import count_epochs

__all__ = ["Answers", "Summary", "answer", "summarise_runs"]


@dataclass(frozen=True)
class Summary:
    """The accuracy of one arm at one budget."""

    arm: str
    budget: int
    n: int  # complete runs
    mean: float | None  # percent; None without a complete run
    std: float | None  # of the sample; None for fewer than two
    seeds: tuple[int, ...]
    diverged: tuple[int, ...]  # seeds


@dataclass(frozen=True)
class Answers:
    """Everything that a comparison says."""

    kind: str  # full, smoke, or empty without records
    jobs: int  # runs that shared the machine; 0 where that is not known
    outcomes: tuple[Outcome, ...]
    summaries: tuple[Summary, ...]
    differences: tuple[Difference, ...]
    others: tuple[Difference, ...]  # to other arms than plain
    speed_ups: tuple[SpeedUp, ...]
    crossings: tuple[Crossing, ...]
    costs: tuple[Cost, ...]
    missing: tuple[str, ...]  # what could not be told, and why

    @property
    def arms(self) -> list[str]:
        """Return the arms in their order."""
        return order_arms(outcome.arm for outcome in self.outcomes)

    @property
    def budgets(self) -> list[int]:
        """Return the budgets, smallest first."""
        return sorted({outcome.budget for outcome in self.outcomes})


def answer(
    records: Sequence[Record], jobs: int = 1, *, against: Mapping[str, str] | None = None
) -> Answers:
    """Return all answers that the records of finished runs allow.

    Args:
        records: of one comparison; full runs or smoke runs.
        jobs: how many runs shared the machine, which makes their times unsure; 0 if not known.
        against: by arm, another arm that it is compared with, beside plain.

    Raises:
        TrActValueError: records that do not belong together, or runs of one seed that are no pair.
    """
    outcomes = read_outcomes(records)
    if not outcomes:
        return Answers(
            "empty", jobs, (), (), (), (), (), (), (), ("There are no records of runs.",)
        )
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.arm, outcome.budget), []).append(outcome)
    differences, crossings, costs, missing = [], [], [], []
    arms = {arm for arm, _ in groups}
    if BASELINE not in arms:
        missing.append("No run is of the arm plain, so that there is nothing to compare with.")
    elif len(arms) == 1:
        missing.append("All runs are of the arm plain, so that there is nothing to compare.")
    for (arm, budget), runs in groups.items():
        plain = groups.get((BASELINE, budget), [])
        pairs = pair_runs(runs, plain)
        if not pairs:
            if arm != BASELINE and BASELINE in arms:
                missing.append(_explain_no_pair(arm, budget, runs, plain))
            continue
        crossings.append(cross_inside(pairs))
        if arm != BASELINE:
            differences.append(compare_accuracy(pairs, runs))
            costs.append(compare_time(pairs))
    speed_ups, not_told = find_speed_ups(outcomes)
    return Answers(
        kind=outcomes[0].kind,
        jobs=jobs,
        outcomes=outcomes,
        summaries=tuple(summarise_runs(runs) for runs in groups.values()),
        differences=tuple(differences),
        others=_compare_others(groups, against or {}),
        speed_ups=speed_ups,
        crossings=tuple(crossings),
        costs=tuple(cost for cost in costs if cost is not None),
        missing=(*missing, *not_told),
    )


def _compare_others(
    groups: Mapping[tuple[str, int], Sequence[Outcome]], against: Mapping[str, str]
) -> tuple[Difference, ...]:
    """Return the differences of arms to other arms than plain."""
    found = []
    for (arm, budget), runs in groups.items():
        other = against.get(arm)
        pairs = pair_runs(runs, groups.get((other, budget), [])) if other else []
        if pairs and other:
            found.append(dataclasses.replace(compare_accuracy(pairs, runs), against=other))
    return tuple(found)


def summarise_runs(runs: Sequence[Outcome]) -> Summary:
    """Return mean and spread of the accuracies of one arm's runs at one budget."""
    accuracies = {run.seed: run.accuracies[-1] for run in runs if run.complete}
    values = list(accuracies.values())
    return Summary(
        arm=runs[0].arm,
        budget=runs[0].budget,
        n=len(values),
        mean=statistics.fmean(values) if values else None,
        std=compute_std(values),
        seeds=tuple(accuracies),
        diverged=tuple(run.seed for run in runs if not run.complete),
    )


def _explain_no_pair(
    arm: str, budget: int, runs: Sequence[Outcome], plain: Sequence[Outcome]
) -> str:
    reason = "no seed was completed by both"
    if not any(run.complete for run in runs):
        reason = "all its runs diverged"
    elif not plain:
        reason = "plain was not run with this budget"
    elif not any(run.complete for run in plain):
        reason = "all runs of plain diverged"
    return f"{name_arm(arm)} at {count_epochs(budget)} has no difference to plain: {reason}."
