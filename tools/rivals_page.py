"""Fill ``docs/rivals.md`` from the records of the trial of first layers, `tools.rivals`.

Only each recipe's longest budget counts. Differences are paired by seed.
"""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.rivals import FIRST, OTHERS, RECIPES, TUNED, UNITS
from trainact.errors import TrActValueError
from trainact.lab.analysis.answers import Difference, Verdict, answer
from trainact.lab.analysis.studies import find_studies
from trainact.lab.recipes.arms import BASELINE, PLAIN, Arm, parse_arms
from trainact.lab.recipes.parts import FIRST_LAYER_LR, LAM, Part
from trainact.lab.records.record import Record
from trainact.lab.records.results import list_record_files
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.statistics import compute_t_interval
from trainact.lab.text import count, count_epochs

__all__ = [
    *("NO_RECORD", "RecipeResult", "format_difference", "read_rivals", "render_trial"),
    "write_rivals",
]

TRACT, BEST = "tract-0.1", "eigen+tract-0.1"
SLOW = ("eigen+frozen", "eigen+tract-0.1+lr-0.1", "eigen+lr-0.1")
NEEDED, SEEDS = 3, 5
"""Recipes on which ``BEST`` must beat ``TRACT``, and seeds on each, before the rule decides."""
FIRST_SEEDS = 3
"""Seeds on each recipe that the rule asked for in the meantime."""
FEWEST_RECIPES = 3
"""Recipes of which a mean gets an interval."""
NO_RECORD = "No records yet."


@dataclass(frozen=True)
class RecipeResult:
    """The arms of one recipe at its longest budget."""

    name: str
    budget: int
    plain: float  # mean accuracy in percent
    arms: dict[str, Arm]  # by their names on the page, but plain
    to_plain: dict[str, Difference]  # by the same names
    to_tract: dict[str, Difference]
    to_best: dict[str, Difference]  # to eigen+tract-0.1


def read_rivals(results: Path) -> list[RecipeResult]:
    """Return the results of the recipes that have records of plain training.

    Raises:
        TrActValueError: a record is damaged, or the records of a recipe cannot be compared.
    """
    folders = [results / name for name in RECIPES if (results / name).is_dir()]
    if not list_record_files(folders):
        return []
    studies, damages = find_studies(folders)
    if damages:
        raise TrActValueError(damages[0].reason)
    found: dict[str, RecipeResult] = {}
    for study in studies:
        if study.name not in RECIPES or study.kind != "full" or not study.records:
            continue
        budget = max(record["budget"] for record in study.records)
        records = [record for record in study.records if record["budget"] == budget]
        result, other = _read_result(study.name, budget, records), found.get(study.name)
        if result is not None and (other is None or other.budget < budget):
            found[study.name] = result
    return [found[name] for name in RECIPES if name in found]


def _read_result(name: str, budget: int, records: Sequence[Record]) -> RecipeResult | None:
    answers = answer(records)
    plain = [s.mean for s in answers.summaries if s.arm == PLAIN and s.mean is not None]
    if not plain:
        return None
    tuned = [_name(arm) for arm in answers.arms if _is_in_trial(arm)]
    if twice := sorted({arm for arm in tuned if tuned.count(arm) > 1}):
        raise TrActValueError(f"{name} has {twice[0]} with several multipliers; keep one.")
    return RecipeResult(
        name,
        budget,
        plain[0],
        {_name(arm): arm for arm in answers.arms if arm != PLAIN and _is_in_trial(arm)},
        {_name(d.arm): d for d in answers.differences},
        _compare_with(TRACT, records),
        _compare_with(BEST, records),
    )


def _compare_with(arm: str, records: Sequence[Record]) -> dict[str, Difference]:
    """Return the differences of all arms to one other than plain, by their names on the page."""
    against = {record["arm"]: arm for record in records if record["arm"] != arm}
    return {_name(d.arm): d for d in answer(records, against=against).others}


def _is_in_trial(arm: Arm) -> bool:
    """Return whether the trial has the arm; of a tuned arm it has any multiplier."""
    return arm.kind == "lr" or _name(arm) in (*FIRST, *OTHERS, *TUNED, *UNITS)


def _name(arm: Arm) -> str:
    """Return the name of an arm on the page: a tuned one has no multiplier, which is each recipe's.

    >>> _name(parse_arms(["foof+lr-30"], [])[0])
    'foof'
    """
    first, *others = arm.parts or (None,)
    is_tuned = first is not None and first.name in TUNED and [p.family for p in others] == ["lr"]
    return first.name if first is not None and is_tuned else arm.name


def write_rivals(results: Sequence[RecipeResult]) -> dict[str, str]:
    """Return the text of each marked place, by its name."""
    arms = {"rivals-arms": render_trial(results)}
    if not results:
        places = (
            *("gains", "over-tract", "over-best", "summary", "verdict", "chance", "rule", "slow"),
            "losses",
        )
        return arms | {f"rivals-{place}": NO_RECORD for place in places}
    return arms | {
        "rivals-gains": _render_differences(results, "to_plain"),
        "rivals-over-tract": _render_differences(results, "to_tract"),
        "rivals-over-best": _render_differences(results, "to_best"),
        "rivals-summary": _render_summary(results),
        "rivals-verdict": _describe_verdict(results),
        "rivals-chance": _describe_chance(results),
        "rivals-rule": _apply_rule(results),
        "rivals-slow": _describe_slow(results),
        "rivals-losses": _render_losses(results),
    }


def render_trial(results: Sequence[RecipeResult]) -> str:
    """Return what each arm of the trial is, and on how many recipes it has runs."""
    rows = []
    controls = [name for name in _list_names(results) if parse_arms([name], [])[0].kind == "lr"]
    for arm in parse_arms((*FIRST, *controls, *OTHERS, *TUNED, *UNITS), []):
        has_variant = any(part.slot == "variant" for part in arm.parts)
        parts = [part for part in arm.parts if part.slot != "lam" or not has_variant]
        tuned = "; its first-layer learning rate is tuned" if arm.name in TUNED else ""
        text = "; ".join(map(_describe_part, parts)) + tuned
        runs = sum(arm == PLAIN or arm.name in result.arms for result in results)
        rows.append((f"`{arm.name}`", text, runs))
    done = tuple((name, text, str(runs)) for name, text, runs in rows if runs)
    planned = tuple((name, text) for name, text, runs in rows if not runs)
    blocks = []
    if done:
        columns = ("arm", "what it is", "recipes")
        blocks.append(render_markdown(Grid("", columns, done, text_columns=2)))
    if planned:
        blocks.append("Planned, but without any run so far:")
        blocks.append(render_markdown(Grid("", ("arm", "what it is"), planned, text_columns=2)))
    return "\n\n".join(blocks)


def _describe_part(part: Part) -> str:
    if part.family == "tract":
        return f"TrAct with λ = {part.changes[LAM]:g}"
    if part.family == "lr":
        return f"the first layer's learning rate times {part.changes[FIRST_LAYER_LR]:g}"
    return part.text


def _list_names(results: Sequence[RecipeResult]) -> list[str]:
    """Return the names of the arms of all recipes, in order."""
    arms = {name: arm for result in reversed(results) for name, arm in result.arms.items()}
    return sorted(arms, key=lambda name: arms[name].sort_key)


def _render_differences(results: Sequence[RecipeResult], field: str) -> str:
    head = ["arm", *(f"{result.name}, {count_epochs(result.budget)}" for result in results)]
    rows = []
    if field == "to_plain":
        rows.append((BASELINE, *(f"{result.plain:.2f} %" for result in results)))
    for name in _list_names(results):
        found = [getattr(result, field).get(name) for result in results]
        if any(found):
            rows.append((f"`{name}`", *map(format_difference, found)))
    return render_markdown(Grid("", tuple(head), tuple(rows)))


def format_difference(difference: Difference | None) -> str:
    """Return a difference with its interval, its seeds, and a tuned arm's multiplier."""
    if difference is None:
        return "-"
    arm = difference.arm
    tuned = "" if _name(arm) == arm.name else f", lr ×{arm.first_layer_lr:g}"
    seeds = f"({count(difference.n, 'seed')}{tuned})"
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.2f} {seeds}"
    return f"{difference.mean:+.2f} [{difference.low:.2f}, {difference.high:.2f}] {seeds}"


def _render_summary(results: Sequence[RecipeResult]) -> str:
    """Return for each arm its mean gain, TrAct's on the same recipes, its wins and its losses."""
    others = ("plain", f"`{TRACT}`", f"`{BEST}`")
    verdicts: tuple[Verdict, ...] = ("better", "worse")
    counts = [f"{verdict} than {other}" for other in others for verdict in verdicts]
    head = ("arm", "recipes", "mean gain", f"gain of `{TRACT}` there", *counts)
    rows = []
    for name in _list_names(results):
        known = [r for r in results if name in r.to_plain]
        if not known:
            continue
        counts = []
        for field in ("to_plain", "to_tract", "to_best"):
            found = [getattr(r, field)[name] for r in results if name in getattr(r, field)]
            counts += [str(_count(found, verdict)) if found else "-" for verdict in verdicts]
        average = f"{statistics.fmean(_average_gain(r, name) for r in known):+.2f}"
        there = "-"
        if all(TRACT in result.to_plain for result in known):
            there = f"{statistics.fmean(_average_gain(r, TRACT) for r in known):+.2f}"
        rows.append((f"`{name}`", str(len(known)), average, there, *counts))
    return render_markdown(Grid("", head, tuple(rows)))


def _count(differences: Sequence[Difference], verdict: Verdict) -> int:
    return sum(difference.verdict == verdict for difference in differences)


def _average_gain(result: RecipeResult, name: str) -> float:
    """Return an arm's mean difference to plain, over the seeds that all arms with several have."""
    found = [result.to_plain[arm] for arm in result.arms if arm in result.to_plain]
    seeds = [difference.seeds for difference in found if difference.n > 1]
    shared = set.intersection(*seeds) if seeds else set()
    own = result.to_plain[name].per_seed
    return statistics.fmean([gain for seed, gain in own if seed in shared] or [g for _, g in own])


def _describe_verdict(results: Sequence[RecipeResult]) -> str:
    """Return on which recipes ``BEST`` is better and worse than ``TRACT``, and where neither."""
    over = {r.name: r.to_tract[BEST] for r in results if BEST in r.to_tract}
    if not over:
        return NO_RECORD
    titles = {"better": "better on", "worse": "worse on", "unclear": "not clearly different on"}
    if any(difference.verdict == "one seed" for difference in over.values()):
        titles["one seed"] = "one seed on"
    groups: dict[str, list[str]] = {title: [] for title in titles.values()}
    for name, difference in over.items():
        groups[titles[difference.verdict]].append(name)
    lines = [f"`{BEST}` against `{TRACT}` on {count(len(over), 'recipe')}:\n"]
    for title, names in groups.items():
        shown = "; ".join(f"{name} {format_difference(over[name])}" for name in names)
        lines.append(f"- {title} {len(names)}" + (f": {shown}" if shown else ""))
    return "\n".join(lines)


def _apply_rule(results: Sequence[RecipeResult]) -> str:
    """Return whether ``BEST`` beats ``TRACT`` on enough recipes with enough seeds."""
    over = {r.name: r.to_tract[BEST] for r in results if BEST in r.to_tract}
    complete = [name for name, difference in over.items() if difference.n >= SEEDS]
    won = [name for name in complete if over[name].verdict == "better"]
    if len(won) >= NEEDED:
        verdict = "The rule is met"
    elif len(complete) == len(RECIPES):
        verdict = "The rule is not met"
    else:
        verdict = f"The rule is not decided before all recipes have {count(SEEDS, 'seed')}"
    early = [difference for difference in map(_take_first_seeds, over.values()) if difference]
    wins = _count(early, "better")
    return (
        f"{verdict}: better on {len(won)} of {count(len(complete), 'recipe')} with "
        f"{count(SEEDS, 'seed')} each. With the first {FIRST_SEEDS} seeds alone it was better on "
        f"{wins} of "
        f"{count(len(early), 'recipe')}, which {'meets' if wins >= NEEDED else 'does not meet'} "
        "the rule."
    )


def _take_first_seeds(found: Difference) -> Difference | None:
    """Return the difference of the first seeds alone; None if it does not have them all."""
    per_seed = tuple(pair for pair in found.per_seed if pair[0] < FIRST_SEEDS)
    values = [value for _, value in per_seed]
    if len(values) < FIRST_SEEDS:
        return None
    low, high = compute_t_interval(values) or (None, None)
    mean = statistics.fmean(values)
    return dataclasses.replace(
        found, n=len(values), mean=mean, low=low, high=high, per_seed=per_seed
    )


def _describe_slow(results: Sequence[RecipeResult]) -> str:
    """Return how a start that moves slowly, or not at all, compares with ``BEST``."""
    lines = []
    for name in SLOW:
        found = [r.to_best[name] for r in results if name in r.to_best]
        if found:
            means = [difference.mean for difference in found]
            interval = compute_t_interval(means)
            shown = ""
            if interval is not None and len(found) >= FEWEST_RECIPES:
                shown = f", 95 % interval over recipes [{interval[0]:.2f}, {interval[1]:.2f}]"
            lines.append(
                f"- `{name}` against `{BEST}`: {statistics.fmean(means):+.2f} points on average "
                f"over {count(len(found), 'recipe')}{shown}; better on {_count(found, 'better')}, "
                f"worse on {_count(found, 'worse')}."
            )
    return "\n".join(lines) or NO_RECORD


def _describe_chance(results: Sequence[RecipeResult]) -> str:
    """Return how many intervals the page has, and how many would exclude 0 by chance."""
    number = sum(
        difference.verdict != "one seed"
        for result in results
        for other, found in _list_compared(result)
        for name, difference in found.items()
        if name in result.arms and (name, other) != (TRACT, BEST)  # counted the other way round
    )
    return (
        f"If no arm had any effect, about {round(number / 20)} of the {number} intervals on this "
        "page would exclude 0 by chance."
    )


def _list_compared(result: RecipeResult) -> list[tuple[str, dict[str, Difference]]]:
    """Return the arms that all others are compared with, and the differences to them."""
    return [(BASELINE, result.to_plain), (TRACT, result.to_tract), (BEST, result.to_best)]


def _render_losses(results: Sequence[RecipeResult]) -> str:
    """Return a line for each loss of an arm to plain, and of TrAct's two arms to another."""
    lines = [f"- {line}" for result in results for line in _list_losses(result)]
    return "\n".join(lines) or "There are none."


def _list_losses(result: RecipeResult) -> Iterator[str]:
    for other, found in _list_compared(result):
        for name, difference in found.items():
            if name not in result.arms:
                continue
            if other == BASELINE and difference.verdict == "worse":
                yield f"{result.name}: `{name}` against `{other}` {format_difference(difference)}"
            elif other != BASELINE and difference.verdict == "better":
                turned = format_difference(_turn(difference))
                yield f"{result.name}: `{other}` against `{name}` {turned}"


def _turn(found: Difference) -> Difference:
    """Return the difference the other way round."""
    assert found.low is not None
    assert found.high is not None
    return dataclasses.replace(found, mean=-found.mean, low=-found.high, high=-found.low)
