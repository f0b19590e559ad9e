"""What each claim of the paper is computed from, by the names of ``paper/claims.toml``."""

from collections.abc import Callable, Iterable
from functools import partial

from trainact.lab.paper.findings import (
    Finding,
    Sought,
    Values,
    compare_every,
    compute_difference,
    compute_overhead,
    compute_share_of_doubling,
    equals,
    exceeds,
    reaches,
    seek_plain,
    seek_tract,
)
from trainact.lab.paper.network_table import (
    PLAIN,
    SHORT,
    TRACT,
    average_networks,
    count_better_networks,
    find_best_network,
    judge_advantage,
    judge_significance,
)
from trainact.lab.paper.trends import (
    LAMS,
    LENGTHS,
    SETTINGS,
    compute_speed_up,
    judge_best_lam,
    judge_settings,
    judge_speed_ups,
)

__all__ = ["RULES"]

Rule = Callable[[Values], Finding]
Pairs = Iterable[tuple[Sought, Sought]]

SGD, ADAM, VIT = "cifar10-resnet18-sgd", "cifar10-resnet18-adam", "cifar10-vit"
ADAM_SGD, NORMS = "cifar10-resnet18-adam-sgd", "cifar10-vit-norms"
RANGES = "cifar10-vit-ranges"
RESNET50, VIT_S, VIT_B = "imagenet-resnet50", "deit3-vit-s", "deit3-vit-b"
BOTH = ("top1", "top5")


def _every_lam(*recipes: str) -> Rule:
    """Return the rule that TrAct is better with every λ at every length."""
    return partial(
        compare_every,
        pairs=[
            (Sought(recipe, (arm,), budget), seek_plain(recipe, budget))
            for recipe in recipes
            for budget in LENGTHS
            for arm in LAMS
        ],
    )


def _every_metric(*trained: tuple[str, int]) -> Rule:
    """Return the rule that TrAct is better in both metrics."""
    return partial(
        compare_every,
        pairs=[
            (seek_tract(recipe, budget, metric), seek_plain(recipe, budget, metric))
            for recipe, budget in trained
            for metric in BOTH
        ],
    )


def _against_longer(
    recipe: str, budget: int, longer: int, relation: Callable[..., bool] = reaches
) -> Rule:
    """Return the rule that TrAct compares so with plain training that takes longer."""
    pairs = [(seek_tract(recipe, budget), seek_plain(recipe, longer))]
    return partial(compare_every, pairs=pairs, relation=relation)


def _norm(arm: str, budget: int) -> Sought:
    return Sought(NORMS, (arm,), budget)


def _range(arm: str) -> Sought:
    return Sought(RANGES, (arm,), 200)


def _shorter_resnet50(metric: str) -> Rule:
    tract, plain = seek_tract(RESNET50, 60, metric), seek_plain(RESNET50, 90, metric)
    return partial(compute_difference, one=tract, other=plain)


def _averages() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for name, arm in {"plain": PLAIN, "tract": TRACT, "tract-133": SHORT}.items():
        for metric in BOTH:
            rule = partial(average_networks, trained=[arm], metric=metric)
            rules[f"cifar100-average-{name}-{metric}"] = rule
            rules[f"cifar100-deviation-{name}-{metric}"] = partial(rule, deviation=True)
    for metric in BOTH:
        gain = partial(average_networks, trained=[TRACT], minus=PLAIN, metric=metric)
        spread = partial(average_networks, trained=[PLAIN, TRACT], metric=metric, deviation=True)
        rules |= {f"cifar100-gain-{metric}": gain, f"cifar100-deviation-{metric}": spread}
    return rules


_NORM_PAIRS: Pairs = [
    *((seek_tract(NORMS, budget), _norm("patch-norm", budget)) for budget in LENGTHS),
    *((seek_tract(NORMS, budget), _norm("dual-patch-norm", budget)) for budget in (100, 400, 800)),
]
_RANGE_PAIRS: Pairs = [
    (_range(f"{ends} tract-0.1"), _range(f"{ends} plain")) for ends in ("[0,1]", "[0,255]")
]

RULES: dict[str, Rule] = {
    # abstract, introduction, conclusion
    "speed-up-range": judge_speed_ups,
    "settings": judge_settings,
    # CIFAR-10
    "cifar10-resnet18-every": _every_lam(SGD, ADAM),
    "cifar10-resnet18-sgd-100-for-800": _against_longer(SGD, 100, 800, exceeds),
    "cifar10-resnet18-adam-100-for-400": _against_longer(ADAM, 100, 400),
    "cifar10-resnet18-adam-200-for-800": _against_longer(ADAM, 200, 800),
    "cifar10-resnet18-best-lam": partial(
        judge_best_lam, recipes=(SGD, ADAM), arm="tract-0.05", mean=False
    ),
    "cifar10-vit-every": _every_lam(VIT),
    "cifar10-vit-200-for-400": _against_longer(VIT, 200, 400),
    "cifar10-vit-best-lam": partial(judge_best_lam, recipes=(VIT,), arm="tract-0.1", mean=True),
    # CIFAR-100
    "cifar100-better-top1": partial(count_better_networks, metrics=("top1",)),
    "cifar100-better-top5": partial(count_better_networks, metrics=("top5",)),
    "cifar100-better-both": partial(count_better_networks, metrics=BOTH),
    "cifar100-better-one": partial(count_better_networks, metrics=BOTH, times=1),
    "cifar100-best": find_best_network,
    **_averages(),
    "cifar100-significant": judge_significance,
    "cifar100-133-for-200": judge_advantage,
    "cifar100-resnet18-every": _every_lam("cifar100-resnet18-sgd", "cifar100-resnet18-adam"),
    # ImageNet
    "resnet50-every": _every_metric((RESNET50, 30), (RESNET50, 60), (RESNET50, 90)),
    "resnet50-60-for-90-top1": _shorter_resnet50("top1"),
    "resnet50-60-for-90-top5": _shorter_resnet50("top5"),
    "resnet50-speed-up": partial(compute_speed_up, recipe=RESNET50),
    "vit-reproduction": partial(
        compare_every,
        pairs=[
            (seek_plain(recipe, budget), Sought(recipe, ("reported",), budget))
            for recipe, budget in ((VIT_S, 400), (VIT_S, 800), (VIT_B, 400))
        ],
    ),
    "vit-every": _every_metric((VIT_S, 400), (VIT_S, 800), (VIT_B, 400)),
    "vit-s-share-of-doubling": partial(compute_share_of_doubling, recipe=VIT_S, budget=400),
    "transfer-every": partial(
        compare_every,
        pairs=[
            (seek_tract(recipe, budget), seek_plain(recipe, budget))
            for recipe, budget in SETTINGS.items()
            if recipe.startswith("transfer-")
        ],
    ),
    # ablations
    "patch-norm-helps": partial(
        compare_every,
        pairs=[
            (_norm("patch-norm", budget), seek_plain(NORMS, budget)) for budget in (100, 200, 400)
        ],
    ),
    "patch-norm-at-800": partial(
        compare_every,
        pairs=[
            (seek_plain(NORMS, 800), _norm(arm, 800)) for arm in ("patch-norm", "dual-patch-norm")
        ],
    ),
    "patch-norm-below-tract": partial(compare_every, pairs=_NORM_PAIRS),
    "dual-patch-norm-like-patch-norm": partial(
        compare_every,
        pairs=[
            (_norm("dual-patch-norm", budget), _norm("patch-norm", budget)) for budget in LENGTHS
        ],
        relation=equals,
    ),
    "value-range-robust": partial(compare_every, pairs=_RANGE_PAIRS),
    "value-range-raw-above-unit": partial(
        compare_every, pairs=[(_range("[0,255] tract-0.1"), _range("[0,1] tract-0.1"))]
    ),
    "value-range-raw-any-lam": partial(
        compare_every,
        pairs=[
            (_range(f"[0,255] tract-{lam}"), _range("[0,255] tract-0.1")) for lam in (0.05, 0.2)
        ],
        relation=equals,
    ),
    "sgd-for-first-layer": partial(
        compare_every,
        pairs=[
            (
                Sought(ADAM_SGD, ("sgd-first tract-0.1",), budget),
                Sought(ADAM_SGD, ("tract-0.1",), budget),
            )
            for budget in LENGTHS
        ],
    ),
    # time
    "time-cifar10-vit": partial(compute_overhead, recipe=VIT, budget=100, metric="seconds"),
    "time-vit-s": partial(compute_overhead, recipe=VIT_S, budget=800, metric="minutes"),
    "time-vit-b": partial(compute_overhead, recipe=VIT_B, budget=400, metric="minutes"),
    # detection
    "detection-gain": partial(
        compute_difference,
        one=seek_tract("detection-voc2007", metric="map"),
        other=seek_plain("detection-voc2007", metric="map"),
        scale=100.0,
    ),
}
"""A finding from values, for every claim."""
