"""Answers in words: how a number is shown, and the one sentence that each answer comes to.

The terminal, the Markdown page and the HTML page all take their numbers and sentences from here.
"""

from collections.abc import Sequence

from trainact.lab.analysis.answers import Answers, Summary
from trainact.lab.analysis.pairs import Difference, TimeRatio
from trainact.lab.analysis.speedups import Reach, SpeedUp
from trainact.lab.recipes.arms import BASELINE, name_arm
from trainact.lab.text import count_epochs

__all__ = [
    "CROSSINGS_ARE_NOT_SPEED_UPS",
    "HOW_SPEED_UPS_ARE_FOUND",
    "HOW_TO_READ_INTERVALS",
    "SMOKE",
    "SMOKE_NOTE",
    "caution_about_time",
    "give_verdict",
    "give_verdicts",
    "show_accuracy",
    "show_difference",
    "show_number",
    "show_ratio",
    "show_reach",
    "show_speed_up",
    "tell_speed_up",
]

SMOKE = "SMOKE RUN: shows that everything works, says nothing about accuracy"
SMOKE_NOTE = "SMOKE RUN, no verdict: "
HOW_TO_READ_INTERVALS = (
    "Brackets are 95 % t intervals of the mean paired difference over seeds: same initial weights "
    "and same order of batches in both runs of a pair. They cover the seeds, not another choice of "
    "test images, and each stands for itself: of twenty comparisons without any effect, about one "
    "excludes 0 by chance."
)
HOW_SPEED_UPS_ARE_FOUND = (
    "Each point is the end of a run with its own full learning-rate schedule. The arm's mean "
    "accuracy over the budgets run, joined by straight lines over the logarithm of the epochs, "
    "first reaches plain's mean accuracy at E epochs after e epochs; the speed-up is E / e. Both "
    "means are over the seeds that have all these runs complete. Brackets are the 95 % percentile "
    "interval of 2,000 bootstrap resamples of the seeds; with fewer than about ten seeds it is too "
    "narrow, and with two or three hardly more than the range of the seeds. Nothing is told beyond "
    "the budgets run: ≥ where the smallest budget already reaches it, < where the largest does "
    "not. Epochs are counted, not seconds."
)
CROSSINGS_ARE_NOT_SPEED_UPS = (
    "This is not the speed-up. Inside a run the learning-rate schedule is not finished: the rate "
    "is still high, and much of the accuracy comes only as it falls. A run planned to be shorter "
    "would have ended elsewhere. The row of plain shows when plain runs themselves first reach the "
    "accuracy that they end with."
)


def show_number(value: float, digits: int = 2, sign: bool = False) -> str:
    """Return a number in fixed digits, without a negative zero.

    >>> show_number(71.254), show_number(-0.001), show_number(1.9, sign=True)
    ('71.25', '0.00', '+1.90')
    """
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def show_accuracy(summary: Summary) -> str:
    """Return ``mean ± std``, or what stands in its place."""
    if summary.mean is None:
        return "diverged"
    spread = "" if summary.std is None else f" ± {show_number(summary.std)}"
    return show_number(summary.mean) + spread


def show_difference(difference: Difference | None) -> str:
    """Return ``+1.90 [0.40, 3.40]``."""
    if difference is None:
        return "-"
    return show_number(difference.mean, sign=True) + _show_interval(difference)


def show_ratio(cost: TimeRatio | None) -> str:
    """Return ``1.05×``."""
    return "-" if cost is None else f"{show_number(cost.ratio)}×"


def show_reach(reach: Reach) -> str:
    """Return a factor with the sign of its bound.

    >>> show_reach(Reach("at least", 4.0)), show_reach(Reach("equal", 1.5))
    ('≥ 4.00×', '1.50×')
    """
    sign = {"equal": "", "at least": "≥ ", "below": "< "}[reach.kind]
    return f"{sign}{show_number(reach.factor)}×"


def show_speed_up(found: SpeedUp) -> str:
    """Return the factor and its interval."""
    if found.low is None or found.high is None:
        return show_reach(found.reach)
    return f"{show_reach(found.reach)} [{show_reach(found.low)}, {show_reach(found.high)}]"


def give_verdict(difference: Difference, diverged: Sequence[int] = ()) -> str:
    """Return one honest sentence on one arm at one budget; ``diverged`` are seeds of the arm."""
    title, mean, n = name_arm(difference.arm), difference.mean, difference.n
    low, high = difference.low, difference.high
    if low is None or high is None:
        told = (
            f"{title}: {show_number(mean, sign=True)} points with one seed, "
            "which gives no interval and so no verdict"
        )
    elif low > 0:
        told = f"{title} is better by {show_number(mean)} points{_show_interval(difference)}"
    elif high < 0:
        interval = f" [{show_number(-high)}, {show_number(-low)}]"
        told = f"{title} is worse by {show_number(-mean)} points{interval}"
    else:
        interval = _show_interval(difference)
        told = f"{title}: no clear difference: {show_number(mean)} points{interval}"
    unpaired = ", ".join(map(str, difference.unpaired))
    alone = f"; left out for want of a complete plain run: seed {unpaired}" if unpaired else ""
    return told + (f" ({n} seeds)" if n > 1 else "") + _tell_diverged(diverged) + alone + "."


def give_verdicts(answers: Answers) -> list[tuple[int, str]]:
    """Return ``(budget, sentence)`` for each arm, the largest budget first.

    Every sentence on smoke runs says that it is on smoke runs.
    """
    differences = {(d.arm, d.budget): d for d in answers.differences}
    told = []
    for summary in answers.summaries:
        difference = differences.get((summary.arm, summary.budget))
        title = name_arm(summary.arm)
        if difference is not None:
            told.append((summary.budget, give_verdict(difference, summary.diverged)))
        elif summary.mean is None:
            told.append((summary.budget, f"{title}: every run diverged{_tell_seeds(summary)}."))
        elif summary.arm == BASELINE:
            reached = f"plain reaches {show_accuracy(summary)} %{_tell_seeds(summary)}"
            told.append((summary.budget, f"{reached}{_tell_diverged(summary.diverged)}."))
        else:
            reached = f"{title} reaches {show_accuracy(summary)} %{_tell_seeds(summary)}"
            told.append((summary.budget, f"{reached}; it has no pair with plain."))
    note = SMOKE_NOTE if answers.kind == "smoke" else ""
    return [(budget, note + text) for budget, text in sorted(told, key=lambda item: -item[0])]


def tell_speed_up(found: SpeedUp) -> str:
    """Return the sentence of one speed-up."""
    title, kind = name_arm(found.arm), found.reach.kind
    goal = f"plain's accuracy of {count_epochs(found.budget)} ({show_number(found.target)} %)"
    if kind == "below":
        most = count_epochs(max(found.budgets))
        told = f"{title} does not reach {goal} within {most}: a speed-up "
        return f"{told}{show_speed_up(found)}{_count(len(found.seeds))}."
    when = f"after {show_number(found.epochs or 0, 1)} epochs"
    if kind == "at least":
        when = f"already at its smallest budget, {count_epochs(min(found.budgets))}"
    slower = "; below 1 is slower" if kind == "equal" and found.reach.factor < 1 else ""
    told = f"{title} reaches {goal} {when}: a speed-up of {show_speed_up(found)}"
    return f"{told}{_count(len(found.seeds))}{slower}."


def caution_about_time(jobs: int) -> str:
    """Return how far times can be trusted, given the runs that shared the machine."""
    how = (
        "Median over seeds of the ratio of training seconds per epoch (median epoch of a run, the "
        "first left out)."
    )
    if jobs == 0:
        return (
            f"{how} Whether other work shared the machine is not recorded; trainact bench "
            "measures this closer."
        )
    if jobs == 1:
        return f"{how} The runs had the machine one by one; trainact bench measures this closer."
    return (
        f"{how} CAUTION: {jobs} runs shared the machine and slowed each other, so that these "
        "ratios are not to be trusted closely; trainact bench measures the cost alone."
    )


def _show_interval(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return " [one seed]"
    return f" [{show_number(difference.low)}, {show_number(difference.high)}]"


def _tell_diverged(seeds: Sequence[int]) -> str:
    if not seeds:
        return ""
    return f"; diverged with seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _tell_seeds(summary: Summary) -> str:
    return _count(summary.n or len(summary.diverged))


def _count(n: int) -> str:
    return f" ({n} seed{'s' * (n > 1)})"
