"""Fill ``docs/when.md``: when TrAct helps and when not, from records and the paper's tables."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from tools.evidence import NO_RECORD, Evidence
from tools.printed_results import (
    describe_gpu_cost,
    describe_paper,
    list_paper_losses,
    render_paper,
)
from trainact.lab.analysis.answers import ENOUGH_SEEDS, Difference, Verdict, answer
from trainact.lab.recipes.arms import BASELINE, PLAIN, Arm
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.report.experiment_page import ExperimentPage
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.report.wording import describe_difference, format_difference
from trainact.lab.text import count, count_epochs
from trainact.options import DEFAULT_LAM

__all__ = ["write_when"]

TRACT = f"tract-{DEFAULT_LAM:g}"
WHITENED, TRAINED, FROZEN = f"eigen+{TRACT}", "eigen", "eigen+frozen"
GROUPS: dict[Verdict | None, str] = {
    None: "No result",
    "worse": "Worse than plain training",
    "unclear": "No clear difference",
    "better": "Better than plain training",
    "one seed": "One seed, so no interval",
}
"""Titles of the groups of results, losses first."""
VERDICTS: dict[Verdict, str] = {
    "worse": "worse",
    "unclear": "no clear difference",
    "better": "better",
    "one seed": "one seed",
}
"""The columns of the summary, losses first."""
ARMS = {
    TRACT: "TrAct",
    WHITENED: "TrAct from a whitened start",
    FROZEN: "a frozen whitened start",
}
OTHERS = {
    BASELINE: "plain training",
    TRACT: "TrAct",
    TRAINED: "a whitened start trained without TrAct",
    FROZEN: "a frozen whitened start",
}
CONTROL = "plain training with a tuned learning rate of the first layer"
STARTS = ((TRACT, FROZEN), (WHITENED, FROZEN), (WHITENED, TRAINED), (WHITENED, TRACT))
"""The arms that are compared with a whitened start or have one."""
GAINS = ((FROZEN, BASELINE), (WHITENED, BASELINE))
"""Whitened starts against plain training."""


class Result(NamedTuple):
    """One recipe, and TrAct at the largest budget with several runs."""

    name: str
    page: ExperimentPage
    budget: int
    to_plain: Difference | None  # None if no seed has a complete run of both
    complete: int  # runs of TrAct
    diverged: tuple[int, ...]  # seeds of TrAct


def write_when(evidence: Evidence, bench: dict[str, Any]) -> dict[str, str]:
    """Return the text of each marked place, by its name."""
    results = [
        result
        for name, page in evidence.items()
        if page is not None and (result := _read_result(name, page)) is not None
    ]
    places = {
        "when-summary": _describe_summary,
        "when-results": _list_groups,
        "when-control": _render_control,
        "when-start": _render_starts,
        "when-budgets": _render_budgets,
        "when-lams": _render_lams,
    }
    return {
        **{name: write(results) if results else NO_RECORD for name, write in places.items()},
        "when-paper": render_paper(),
        "when-paper-brief": describe_paper(),
        "when-paper-losses": list_paper_losses(),
        "when-cost": _describe_cost(bench),
        "when-gpu-cost": describe_gpu_cost(),
    }


def _read_result(name: str, page: ExperimentPage) -> Result | None:
    """Return the result of a recipe; None if it has no runs of TrAct."""
    arms = {arm.name: arm for arm in page.answers.arms} if page.answers is not None else {}
    if TRACT not in arms:
        return None
    assert page.answers is not None
    budget = page.answers.find_budget(arms[TRACT])
    summary = page.answers.find_summary(arms[TRACT], budget)
    assert summary is not None
    found = next((d for d in _list_differences(page) if d.budget == budget), None)
    return Result(name, page, budget, found, summary.n, summary.diverged)


def _list_differences(page: ExperimentPage) -> list[Difference]:
    """Return the differences of TrAct to plain, the smallest budget first."""
    found = page.answers.differences if page.answers is not None else ()
    return sorted((d for d in found if d.arm.name == TRACT), key=lambda d: d.budget)


def _compare(
    result: Result, *pairs: tuple[str, str], budget: int | None = None
) -> list[Difference]:
    """Return the difference of the arms of each pair, over the seeds that all of them completed.

    The default budget is the largest at which all ended for enough seeds, else for most. Without
    such a budget, and where a pair's runs diverged, there is no difference.
    """
    arms = {name for pair in pairs for name in pair}
    ended = _list_ended(result, arms)
    if budget is None:
        budget = max(ended, key=lambda b: (min(len(ended[b]), ENOUGH_SEEDS), b), default=0)
    shared = [
        record
        for record in result.page.study.records
        if record["arm"] in arms
        and record["budget"] == budget
        and record["seed"] in ended.get(budget, ())
    ]
    diverged = {record["seed"] for record in shared if record["status"] != "complete"}
    complete = [record for record in shared if record["seed"] not in diverged]
    return [
        difference
        for arm, other in pairs
        for difference in answer(complete, against={arm: other}).others
    ]


def _list_ended(result: Result, arms: Collection[str]) -> dict[int, set[int]]:
    """Return the seeds with which all arms ended, complete or diverged, by budget."""
    seeds: dict[int, dict[str, set[int]]] = {}
    for record in result.page.study.records:
        by_arm = seeds.setdefault(record["budget"], {arm: set() for arm in arms})
        by_arm.get(record["arm"], set()).add(record["seed"])
    shared = {budget: set.intersection(*by_arm.values()) for budget, by_arm in seeds.items()}
    return {budget: found for budget, found in sorted(shared.items()) if found}


def _describe_summary(results: Sequence[Result]) -> str:
    """Return the range of the gains, and a table: how often TrAct was better and worse."""
    comparisons = {
        (ARMS[TRACT], OTHERS[BASELINE]): [[r.to_plain] if r.to_plain else [] for r in results],
        (ARMS[TRACT], CONTROL): [_compare_with_control(result)[2:] for result in results],
        **{
            (ARMS[arm], OTHERS[other]): [_compare(result, (arm, other)) for result in results]
            for arm, other in (*STARTS, *GAINS)
        },
    }
    counted, intervals = {}, 0
    for titles, found in comparisons.items():
        verdicts = [difference.verdict for differences in found for difference in differences]
        intervals += sum(verdict != "one seed" for verdict in verdicts)
        counted[titles] = {VERDICTS[name]: verdicts.count(name) for name in VERDICTS}
        counted[titles]["no result"] = len(results) - len(verdicts)
    columns = [name for name in next(iter(counted.values())) if _is_shown(name, counted.values())]
    rows = tuple((*titles, *(str(n[name]) for name in columns)) for titles, n in counted.items())
    head = ("method", "compared with", *columns)
    blocks = [
        *_describe_gains(results),
        f"In how many of these {count(len(results), 'recipe')} a method was worse or better than "
        "another:",
        render_markdown(Grid("", head, rows, text_columns=2)),
        "Better and worse mean that a 95 % interval over seeds excludes 0. If no method had any "
        f"effect, about {round(intervals / 20)} of these {intervals} intervals would exclude it by "
        "chance. Of each recipe we use the longest training for which both methods have "
        f"{ENOUGH_SEEDS} or more seeds, or else the one with the most seeds.",
    ]
    blocks += [
        f"Runs of {title} diverged on {count(diverged, 'recipe')}."
        for arm, title in ARMS.items()
        if (diverged := sum(_has_diverged(result, arm) for result in results))
    ]
    return "\n\n".join(blocks)


def _is_shown(column: str, counts: Collection[dict[str, int]]) -> bool:
    """Return whether a column of the summary belongs to each of them or has a number."""
    return column not in (VERDICTS["one seed"], "no result") or any(n[column] for n in counts)


def _describe_gains(results: Sequence[Result]) -> list[str]:
    """Return a table: each method's smallest and largest gain on each data set."""
    by_data: dict[str, list[Result]] = {}
    for result in results:
        by_data.setdefault(result.page.study.records[0]["data"]["name"], []).append(result)
    rows = []
    for arm, title in ARMS.items():
        cells = [_describe_range(same, arm) for same in by_data.values()]
        if set(cells) != {"-"}:
            rows.append((title, *cells))
    head = ("minus plain training", *map(_describe_images, by_data.values()))
    longest = max(result.budget for result in results)
    return [
        "The smallest and the largest mean difference to plain training, in percentage points of "
        f"test accuracy, over {count(len(results), 'recipe')} of our own. A recipe is a network, a "
        f"data set and a training schedule; ours are small, and have at most "
        f"{count_epochs(longest)}:",
        render_markdown(Grid("", head, tuple(rows))),
    ]


def _describe_images(results: Sequence[Result]) -> str:
    """Return the data set of some recipes and the sizes of its parts."""
    data = [result.page.study.records[0]["data"] for result in results]
    sizes = {
        part: " or ".join(f"{size:,}" for size in sorted({row[f"{part}_images"] for row in data}))
        for part in ("train", "test")
    }
    return (
        f"{count(len(results), 'recipe')} with {data[0]['name']}, {sizes['train']} training images "
        f"and {sizes['test']} test images"
    )


def _describe_range(results: Sequence[Result], arm: str) -> str:
    """Return an arm's smallest and largest gain; how many recipes have it, if not all do."""
    gains = [found.mean for result in results for found in _compare(result, (arm, BASELINE))]
    if not gains:
        return "-"
    low, high = f"{min(gains):+.2f}", f"{max(gains):+.2f}"
    known = "" if len(gains) == len(results) else f" ({count(len(gains), 'recipe')})"
    return (low if low == high else f"{low} to {high}") + known


def _has_diverged(result: Result, arm: str) -> bool:
    return any(r["arm"] == arm and r["status"] != "complete" for r in result.page.study.records)


def _list_groups(results: Sequence[Result]) -> str:
    """Return a list for each group: the results in sentences."""
    blocks = []
    for verdict, title in GROUPS.items():
        lines = [
            f"- {result.name}, {count_epochs(result.budget)}: {_describe(result)}"
            for result in results
            if (result.to_plain.verdict if result.to_plain else None) == verdict
        ]
        if lines:
            blocks += [f"**{title}**", "\n".join(lines)]
    return "\n\n".join(blocks)


def _describe(result: Result) -> str:
    if result.to_plain is None:
        if not result.complete:
            return "every run diverged."
        assert result.page.answers is not None
        has_plain = result.page.answers.find_summary(PLAIN, result.budget) is not None
        return f"no {'seed was completed by both' if has_plain else 'plain run to compare with'}."
    return describe_difference(result.to_plain, result.diverged)


def _find_control(result: Result) -> Arm | None:
    """Return plain training with another learning rate for the first layer, run or planned."""
    assert result.page.answers is not None
    done = [s.arm for s in result.page.answers.summaries if s.budget == result.budget]
    planned = find_experiment(result.name).arms
    return next((arm for arm in (*done, *planned) if arm.kind == "lr"), None)


def _compare_with_control(result: Result) -> list[Difference]:
    """Return TrAct minus plain, control minus plain and TrAct minus control, or nothing."""
    control = _find_control(result)
    if control is None:
        return []
    pairs = ((TRACT, BASELINE), (control.name, BASELINE), (TRACT, control.name))
    return _compare(result, *pairs)


def _render_control(results: Sequence[Result]) -> str:
    """Return a table: TrAct and the control against plain, and against each other."""
    rows, unclear = [], []
    for result in results:
        if (control := _find_control(result)) is None:
            rows.append((result.name, "none planned", *["-"] * 5))
            continue
        shown = ["no result yet"] * 5
        if found := _compare_with_control(result):
            shown = [str(found[0].budget), str(found[0].n), *map(format_difference, found)]
            unclear += [result.name] * (found[-1].verdict in ("worse", "unclear"))
        rows.append((result.name, control.title, *shown))
    columns = ("TrAct minus plain", "control minus plain", "TrAct minus control")
    head = ("recipe", "control", "epochs", "n", *columns)
    table = render_markdown(Grid("", head, tuple(rows), text_columns=2))
    if not unclear:
        return table
    return f"{table}\n\nTrAct is not clearly better than the control on {', '.join(unclear)}."


def _render_starts(results: Sequence[Result]) -> str:
    """Return a table: whitened starts, and TrAct, against each other and plain training."""
    rows = []
    for result in results:
        for pair in (*STARTS, *GAINS):
            for budget in _list_ended(result, pair):
                for found in _compare(result, pair, budget=budget):
                    shown = (str(budget), format_difference(found), str(found.n))
                    rows.append((result.name, found.arm.title, found.against.title, *shown))
    head = ("recipe", "arm", "compared with", "epochs", "difference", "n")
    return render_markdown(Grid("", head, tuple(rows), text_columns=3)) if rows else NO_RECORD


def _render_budgets(results: Sequence[Result]) -> str:
    """Return TrAct's difference at every budget of the recipes that have several."""
    rows = tuple(
        (result.name, str(found.budget), format_difference(found), str(found.n))
        for result in results
        for found in _list_differences(result.page)
        if len(_list_differences(result.page)) > 1
    )
    return _render(("recipe", "epochs", "TrAct minus plain", "n"), rows)


def _render_lams(results: Sequence[Result]) -> str:
    """Return the difference to plain for every λ, over the seeds that all of them have."""
    rows = []
    for result in results:
        assert result.page.answers is not None
        lams = [
            (s.arm.name, BASELINE)
            for s in result.page.answers.summaries
            if s.arm.kind == "tract" and s.budget == result.budget
        ]
        if len(lams) > 1:
            rows += [
                (result.name, f"{found.arm.lam:g}", format_difference(found), str(found.n))
                for found in _compare(result, *lams, budget=result.budget)
            ]
    return _render(("recipe", "λ", "TrAct minus plain", "n"), tuple(rows))


def _render(head: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    return render_markdown(Grid("", head, rows)) if rows else NO_RECORD


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
