"""Statistics as text: formatted numbers, and one sentence per result.

The terminal, the Markdown page and the HTML page all use these functions.
"""

from collections.abc import Sequence

from trainact.lab.analysis.answers import Answers, Difference, Summary, TimeRatio
from trainact.lab.analysis.speedups import Reach, SpeedUp
from trainact.lab.recipes.arms import PLAIN
from trainact.lab.text import count, count_epochs

__all__ = [
    "CROSSING_NOTE",
    "SMOKE_PREFIX",
    "SMOKE_WARNING",
    "SPEED_UP_NOTE",
    "describe_difference",
    "describe_intervals",
    "describe_results",
    "describe_speed_up",
    "describe_timing",
    "format_accuracy",
    "format_difference",
    "format_number",
    "format_ratio",
    "format_reach",
    "format_speed_up",
]

SMOKE_WARNING = "SMOKE RUN: a test of the software; its accuracy means nothing"
SMOKE_PREFIX = "SMOKE RUN, not a result: "
SPEED_UP_NOTE = (
    "Each point is the end of a run with its own full learning-rate schedule. The arm's mean "
    "accuracy as a function of the budget is interpolated linearly in log epochs. It first reaches "
    "plain's mean accuracy at E epochs after e epochs; the speed-up is E / e. Both means are over "
    "the seeds that completed all these runs. Brackets are 95 % intervals over seeds: they hold "
    "each E / e at which a paired t test finds no difference between the two accuracies. There is "
    "no extrapolation: ≥ means that the smallest budget already reaches the accuracy, < that the "
    "largest does not. The speed-up counts epochs, not seconds."
)
CROSSING_NOTE = (
    "This is not the speed-up. In the middle of a run the learning rate is still high, and much of "
    "the accuracy comes only as it decays; a run with a shorter schedule would end at a different "
    "accuracy. The row of plain shows when plain runs first reach their own final accuracy."
)


def format_number(value: float, digits: int = 2, sign: bool = False) -> str:
    """Return a number with fixed digits, without a negative zero.

    >>> format_number(71.254), format_number(-0.001), format_number(1.9, sign=True)
    ('71.25', '0.00', '+1.90')
    """
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def format_accuracy(summary: Summary, diverged: Sequence[int] = ()) -> str:
    """Return ``mean ± std`` and how many of the seeds ``diverged``, or ``diverged`` if all did."""
    if summary.mean is None:
        return "diverged"
    deviation = "" if summary.std is None else f" ± {format_number(summary.std)}"
    others = f", {len(diverged)} diverged" if diverged else ""
    return format_number(summary.mean) + deviation + others


def format_difference(difference: Difference | None) -> str:
    """Return ``+1.90 [0.40, 3.40]``."""
    if difference is None:
        return "-"
    return format_number(difference.mean, sign=True) + _format_interval(difference)


def format_ratio(ratio: TimeRatio | None) -> str:
    """Return ``1.05×``."""
    return "-" if ratio is None else f"{format_number(ratio.ratio)}×"


def format_reach(reach: Reach) -> str:
    """Return a factor, with its sign if it is a bound.

    >>> format_reach(Reach("at least", 4.0)), format_reach(Reach("equal", 1.5))
    ('≥ 4.00×', '1.50×')
    """
    sign = {"equal": "", "at least": "≥ ", "below": "< "}[reach.kind]
    return f"{sign}{format_number(reach.factor)}×"


def format_speed_up(found: SpeedUp) -> str:
    """Return the factor and its interval."""
    if found.low is None or found.high is None:
        return format_reach(found.reach)
    return f"{format_reach(found.reach)} [{format_reach(found.low)}, {format_reach(found.high)}]"


def describe_difference(difference: Difference, diverged: Sequence[int] = ()) -> str:
    """Return the result of one arm at one budget; ``diverged`` are seeds of the arm."""
    title, mean, n = difference.arm.title, difference.mean, difference.n
    if difference.low is None or difference.high is None:
        points = format_number(mean, sign=True)
        text = f"{title}: {points} points with one seed, which gives no interval"
    elif difference.verdict == "worse":
        interval = f" [{format_number(-difference.high)}, {format_number(-difference.low)}]"
        text = f"{title} is worse by {format_number(-mean)} points{interval}"
    elif difference.verdict == "better":
        text = f"{title} is better by {format_number(mean)} points{_format_interval(difference)}"
    else:
        points = format_number(mean, sign=True)
        text = f"{title}: no clear difference: {points} points{_format_interval(difference)}"
    if n > 1:
        text += f" ({count(n, 'seed')})"
    text += _describe_diverged(diverged)
    if difference.unpaired:
        text += f"; without {_list_seeds(difference.unpaired)}, where plain has no complete run"
    return f"{text}."


def describe_intervals(answers: Answers) -> str:
    """Return what the intervals mean; the batches of a user's own loop are not known."""
    batches = " and see the same batches" if all(run.order for run in answers.runs) else ""
    is_replaced = any(part.slot == "start" for arm in answers.arms for part in arm.parts)
    start = ", except for a first layer that starts from the images," if is_replaced else ""
    return (
        "Brackets are 95 % t intervals of the mean paired difference over seeds. Both runs of a "
        f"pair start from the same weights{start}{batches}. The intervals cover the choice of "
        "seeds, not the choice of test images, and are not corrected for multiple comparisons: "
        "without any effect, about one in twenty excludes 0."
    )


def describe_results(answers: Answers) -> list[tuple[int, str]]:
    """Return ``(budget, sentence)`` for each arm, the largest budget first.

    Sentences about smoke runs begin with a warning.
    """
    differences = {(d.arm, d.budget): d for d in answers.differences}
    results = []
    for summary in answers.summaries:
        difference = differences.get((summary.arm, summary.budget))
        title = summary.arm.title
        seeds = f" ({count(summary.n or len(summary.diverged), 'seed')})"
        if difference is not None:
            text = describe_difference(difference, summary.diverged)
        elif summary.mean is None:
            text = f"{title}: every run diverged{seeds}."
        elif summary.arm == PLAIN:
            reached = f"plain reaches {format_accuracy(summary)} %{seeds}"
            text = f"{reached}{_describe_diverged(summary.diverged)}."
        else:
            reached = f"{title} reaches {format_accuracy(summary)} %{seeds}"
            text = f"{reached}; there is no plain run to compare it with."
        results.append((summary.budget, text))
    prefix = SMOKE_PREFIX if answers.kind == "smoke" else ""
    return [(budget, prefix + text) for budget, text in sorted(results, key=lambda r: -r[0])]


def describe_speed_up(found: SpeedUp) -> str:
    """Return one speed-up as a sentence."""
    title, kind = found.arm.title, found.reach.kind
    accuracy = f"accuracy of {count_epochs(found.budget)} ({format_number(found.target)} %)"
    target = (
        f"plain's {accuracy}"
        if found.against == PLAIN
        else f"the {accuracy} of {found.against.title}"
    )
    result = f"{format_speed_up(found)} ({count(len(found.seeds), 'seed')})"
    if kind == "below":
        most = count_epochs(max(found.budgets))
        return f"{title} does not reach {target} within {most}: a speed-up {result}."
    when = f"after {format_number(found.epochs or 0, 1)} epochs"
    if kind == "at least":
        when = f"already with its smallest budget, {count_epochs(min(found.budgets))}"
    slower = "; below 1 is slower" if kind == "equal" and found.reach.factor < 1 else ""
    return f"{title} reaches {target} {when}: a speed-up of {result}{slower}."


def describe_timing(jobs: int) -> str:
    """Return how the time ratios were measured and how reliable they are.

    ``jobs`` runs shared the machine; 0 if unknown.
    """
    method = (
        "Median over seeds of the ratio of training time per epoch (the median epoch of a run, "
        "without the first)."
    )
    if jobs > 1:
        return (
            f"{method} CAUTION: {jobs} runs shared the machine and slowed each other down, so "
            "these ratios are not reliable. trainact bench measures the cost alone."
        )
    shared = "These runs were done one at a time; other processes were not checked."
    if jobs == 0:
        shared = (
            "CAUTION: whether other processes used the machine was not recorded. One that did "
            "makes a ratio too large or too small."
        )
    return f"{method} {shared} trainact bench measures the cost more precisely."


def _format_interval(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return " [one seed]"
    return f" [{format_number(difference.low)}, {format_number(difference.high)}]"


def _describe_diverged(seeds: Sequence[int]) -> str:
    return f"; diverged with {_list_seeds(seeds)}" if seeds else ""


def _list_seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
