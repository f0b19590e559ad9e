"""Findings over several lengths of training, several λ or several experiments."""

from collections.abc import Mapping, Sequence

from trainact.lab.paper import list_networks
from trainact.lab.paper.findings import (
    AbsentValueError,
    Number,
    Sought,
    Values,
    Verdict,
    compare_every,
    reaches,
    seek_plain,
    seek_tract,
    take,
)
from trainact.lab.paper.network_table import PLAIN, SHORT, TRACT, average_networks
from trainact.lab.statistics import find_in_log

__all__ = [
    "LAMS",
    "LENGTHS",
    "SETTINGS",
    "compute_factor",
    "compute_speed_up",
    "judge_best_lam",
    "judge_settings",
    "judge_speed_ups",
]

LENGTHS = (100, 200, 400, 800)
"""Epochs of the CIFAR-10 experiments."""
LAMS = ("tract-0.05", "tract-0.1", "tract-0.2")
TABLE = "cifar100-table"
FACTORS = (1.25, 4.0)
"""The stated ends of the range of speed-ups."""
TOLERANCE = 0.05
"""Of these factors: the paper does not say how it finds them, ours are interpolated."""
SETTINGS = {
    **dict.fromkeys(("cifar10-resnet18-sgd", "cifar10-resnet18-adam", "cifar10-vit"), 800),
    **dict.fromkeys(("cifar100-resnet18-sgd", "cifar100-resnet18-adam"), 800),
    **dict.fromkeys(("imagenet-resnet18", "imagenet-resnet34", "imagenet-resnet50"), 90),
    "deit3-vit-s": 800,
    "deit3-vit-b": 400,
    **dict.fromkeys(("transfer-cifar10", "transfer-cifar100"), 200),
    "transfer-flowers102": 5000,
    "transfer-cars": 1000,
}
"""With the 36 networks the 50 settings of network, data and optimizer that the paper counts (a
count of ours: the paper does not list them), and the longest training of each."""

Reach = tuple[str, float]
"""Nothing, "at least " or "below ", and a factor."""


def compute_speed_up(values: Values, recipe: str) -> Number:
    """Return how many times fewer epochs TrAct needs for plain's accuracy at its longest."""
    found = {metric: _reach(values, recipe, metric) for metric in ("top1", "top5")}
    shown = " and ".join(f"{how}{factor:.3f} ({key})" for key, (how, factor) in found.items())
    return Number(found["top1"][1], detail=f"By interpolation {shown}.")


def compute_factor(curve: Mapping[int, float], budget: int, target: float) -> Reach:
    """Return how many times fewer epochs than ``budget`` reach the target.

    The curve, mean accuracy by epochs of runs with their own full schedules, is a line over the
    logarithm of the epochs; its shortest runs may give a lower bound only.

    >>> compute_factor({30: 70.0, 60: 74.0, 90: 75.0}, 90, 74.0)
    ('', 1.5)
    >>> compute_factor({30: 70.0, 60: 74.0}, 90, 69.0)
    ('at least ', 3.0)
    >>> compute_factor({30: 70.0, 60: 74.0}, 90, 76.0)
    ('below ', 1.5)
    """
    epochs = find_in_log(sorted(curve.items()), target)
    if epochs is None:
        return "below ", budget / max(curve)
    return "at least " if epochs == min(curve) else "", budget / epochs


def judge_speed_ups(values: Values) -> Verdict:
    """Return whether the experiments with several lengths span the range that is stated."""
    recipes = ["cifar10-resnet18-sgd", "cifar10-resnet18-adam", "cifar10-vit"]
    recipes += [TABLE, "imagenet-resnet50", "deit3-vit-s"]
    found: dict[str, Reach] = {}
    for recipe in recipes:
        try:
            found[recipe] = _reach(values, recipe, "top1")
        except AbsentValueError:
            continue
    if not found:
        raise AbsentValueError("any experiment with several lengths of training")
    factors = [factor for _, factor in found.values()]
    least, greatest = (factor - TOLERANCE for factor in FACTORS)
    slow = min(factors) < least or any(how == "below " for how, _ in found.values())
    complete = len(found) == len(recipes)
    return Verdict(
        False if slow else max(factors) >= greatest if complete else None,
        f"{min(factors):.2f} to {max(factors):.2f}",
        ", ".join(f"{recipe} {how}{factor:.2f}" for recipe, (how, factor) in found.items())
        + ("." if complete else "; the other experiments have no values."),
    )


def judge_best_lam(values: Values, recipes: Sequence[str], arm: str, *, mean: bool) -> Verdict:
    """Return whether a λ is best in most cases or, with ``mean``, in the mean over them."""
    cases = [
        {one: take(values, Sought(recipe, (one,), budget)).mean for one in LAMS}
        for recipe in recipes
        for budget in LENGTHS
    ]
    if mean:
        means = {one: sum(case[one] for case in cases) / len(cases) for one in LAMS}
        best = max(means, key=means.__getitem__)
        shown = ", ".join(f"{one} {accuracy:.2f}" for one, accuracy in means.items())
        return Verdict(best == arm, best, f"Means: {shown}.")
    wins = sum(max(case, key=case.__getitem__) == arm for case in cases)
    return Verdict(2 * wins > len(cases), f"{wins} of {len(cases)}")


def judge_settings(values: Values) -> Verdict:
    """Return whether no setting is worse with TrAct by more than the deviations allow."""
    pairs = [
        (seek_tract(recipe, budget), seek_plain(recipe, budget))
        for recipe, budget in SETTINGS.items()
    ]
    for network in list_networks():
        tract, plain = (
            Sought(TABLE, (arm,), budget, network=network) for arm, budget in (TRACT, PLAIN)
        )
        pairs.append((tract, plain))
    return compare_every(values, pairs, reaches)


def _reach(values: Values, recipe: str, metric: str) -> Reach:
    """Return the speed-up of an experiment at the greatest budget that plain was run with."""
    if recipe == TABLE:
        target = average_networks(values, [PLAIN], metric).value
        curve = {arm[1]: average_networks(values, [arm], metric).value for arm in (SHORT, TRACT)}
        return compute_factor(curve, PLAIN[1], target)
    budgets = sorted(
        key.budget
        for key in values
        if (key.recipe, key.arm, key.metric) == (recipe, "plain", metric)
    )
    if len(budgets) < 2:
        raise AbsentValueError(f"two lengths of {recipe} plain ({metric})")
    curve = {budget: take(values, seek_tract(recipe, budget, metric)).mean for budget in budgets}
    target = take(values, seek_plain(recipe, budgets[-1], metric)).mean
    return compute_factor(curve, budgets[-1], target)
