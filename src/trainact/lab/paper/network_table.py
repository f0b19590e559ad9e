"""Findings over the 36 networks of the CIFAR-100 table."""

import statistics
from collections.abc import Sequence

import scipy.stats

from trainact.lab.paper import list_networks
from trainact.lab.paper.findings import (
    AbsentValueError,
    Finding,
    Number,
    Sought,
    Values,
    Verdict,
    exceeds,
    take,
)

__all__ = [
    "PLAIN",
    "SHORT",
    "TRACT",
    "average_networks",
    "count_better_networks",
    "find_best_network",
    "judge_advantage",
    "judge_significance",
]

Trained = tuple[str, int]
"""An arm and its epochs."""
PLAIN, TRACT, SHORT = ("plain", 200), ("tract-0.1", 200), ("tract-0.1", 133)
SIGNIFICANT = 0.01
"""The p below which a difference is taken for very significant; the paper names no test."""


def count_better_networks(
    values: Values, metrics: Sequence[str], times: int | None = None
) -> Finding:
    """Return how many networks are better with TrAct.

    Args:
        values: by key.
        metrics: top1, top5 or both.
        times: in exactly how many of the metrics; all of them unless given.
    """
    better: dict[str, int] = {}
    for network in list_networks():
        try:
            better[network] = sum(
                exceeds(
                    take(values, _seek(TRACT, metric, network)),
                    take(values, _seek(PLAIN, metric, network)),
                )
                for metric in metrics
            )
        except AbsentValueError:
            continue
    if not better:
        raise AbsentValueError(f"any network of cifar100-table ({', '.join(metrics)})")
    wanted = len(metrics) if times is None else times
    counted = [network for network, found in better.items() if found == wanted]
    others = [network for network in better if network not in counted]
    lacking = len(list_networks()) - len(better)
    if lacking:
        shown = f"{len(counted)} of {len(better)}"
        return Verdict(None, shown, f"{lacking} of the networks have no values.")
    if len(counted) < len(others):
        return Number(len(counted), detail=f"These are {', '.join(counted)}.")
    return Number(len(counted), detail=f"The others are {', '.join(others)}." if others else "")


def average_networks(
    values: Values,
    trained: Sequence[Trained],
    metric: str,
    *,
    deviation: bool = False,
    minus: Trained | None = None,
) -> Number:
    """Return the mean over the networks.

    Args:
        values: by key.
        trained: arm and budget; with several, the mean over them too.
        metric: top1 or top5.
        deviation: average the deviations over seeds, not the means.
        minus: arm and budget whose mean is subtracted.

    Raises:
        AbsentValueError: the value of a network is not at hand.
    """

    def average(arms: Sequence[Trained]) -> float:
        return statistics.fmean(
            _read(values, _seek(arm, metric, network), deviation)
            for arm in arms
            for network in list_networks()
        )

    return Number(average(trained) - (average([minus]) if minus else 0.0))


def find_best_network(values: Values) -> Verdict:
    """Return whether the greatest accuracy of all, in either metric, is one of TrAct."""
    shown = []
    for metric in ("top1", "top5"):
        best = {
            arm: max(
                (take(values, _seek(arm, metric, network)).mean, network)
                for network in list_networks()
            )
            for arm in (TRACT, PLAIN)
        }
        shown.append((metric, best[TRACT], best[PLAIN]))
    return Verdict(
        all(tract[0] > plain[0] for _, tract, plain in shown),
        " and ".join(f"{tract[0]:.2f}" for _, tract, _ in shown),
        " ".join(
            f"{metric}: TrAct {tract[0]:.2f} ({tract[1]}), plain {plain[0]:.2f} ({plain[1]})."
            for metric, tract, plain in shown
        ),
    )


def judge_advantage(values: Values) -> Verdict:
    """Return whether TrAct for 133 epochs is, on average, above plain training for 200."""
    gains = [average_networks(values, [SHORT], m, minus=PLAIN).value for m in ("top1", "top5")]
    return Verdict(all(gain > 0 for gain in gains), " and ".join(f"{g:+.3f}" for g in gains))


def judge_significance(values: Values) -> Verdict:
    """Return whether the paired differences of the networks, by a t test, exclude chance."""
    tests = []
    for metric in ("top1", "top5"):
        differences = [
            take(values, _seek(TRACT, metric, network)).mean
            - take(values, _seek(PLAIN, metric, network)).mean
            for network in list_networks()
        ]
        result = scipy.stats.ttest_1samp(differences, 0.0)
        tests.append((metric, float(result.statistic), float(result.pvalue)))
    return Verdict(
        all(t > 0 and p < SIGNIFICANT for _, t, p in tests),
        f"p at most {max(p for _, _, p in tests):.1g}",
        " ".join(f"{metric}: t = {t:.2f}, p = {p:.1g}." for metric, t, p in tests)
        + " The test, over networks, is ours: the paper names none.",
    )


def _seek(trained: Trained, metric: str, network: str) -> Sought:
    arm, budget = trained
    return Sought("cifar100-table", (arm,), budget, metric, network)


def _read(values: Values, sought: Sought, deviation: bool) -> float:
    value = take(values, sought)
    number = value.deviation if deviation else value.mean
    if number is None:
        raise AbsentValueError(f"the deviation of {sought.describe()}")
    return number
