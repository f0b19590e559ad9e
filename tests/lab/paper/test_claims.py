"""The paper's tables confirm its text, except where listed here; so do measured values."""

import pytest

from comparison_records import make_record
from trainact.lab.paper.claims import check_claims, read_claim, read_claims
from trainact.lab.paper.measured import measure_values
from trainact.lab.paper.rules import RULES
from trainact.lab.paper.tables import printed_values
from trainact.lab.paper.values import Key, MeasuredValue, PrintedValue
from trainact.lab.recipes.experiment import find_experiment

BUDGETS = (100, 200, 400, 800)
FALSE_IN_PRINT = ["vit-reproduction"]
"""The reproduced ViT-B, 83.34, is below the reported 83.5; the text says above."""
SHOWN_IN_FIGURES = [
    "speed-up-range",
    "settings",
    "cifar10-resnet18-every",
    "cifar10-resnet18-sgd-100-for-800",
    "cifar10-resnet18-adam-100-for-400",
    "cifar10-resnet18-adam-200-for-800",
    "cifar10-resnet18-best-lam",
    "cifar10-vit-every",
    "cifar10-vit-200-for-400",
    "cifar10-vit-best-lam",
    "cifar100-resnet18-every",
    "lam-robust",
    "lam-subtle",
    "lam-length",
    "lam-recommended",
    "lam-recommended-long",
    "patch-norm-helps",
    "patch-norm-at-800",
    "patch-norm-below-tract",
    "dual-patch-norm-like-patch-norm",
    "value-range-robust",
    "value-range-raw-above-unit",
    "value-range-raw-any-lam",
    "sgd-for-first-layer",
]


def check(values, *names):
    return {result.name: result for result in check_claims(values, names or None)}


def as_measured(values):
    return {key: MeasuredValue(value.mean, value.deviation, 5) for key, value in values.items()}


def make_values(recipe, accuracies, deviation=0.1):
    """Return measured top-1 values from {(arm, budget): accuracy}."""
    return {
        Key(recipe, None, arm, budget, "top1"): MeasuredValue(accuracy, deviation, 5)
        for (arm, budget), accuracy in accuracies.items()
    }


# claims on the paper's own numbers


def test_every_claim_is_stated_and_computed():
    assert {claim.rule for claim in read_claims().values()} == set(RULES)
    for name in read_claims():
        claim = read_claim(name)
        assert claim.says
        assert claim.section


def test_the_papers_tables_confirm_its_text_except_where_known():
    results = check_claims(printed_values())
    assert [result.name for result in results] == list(read_claims())
    assert [result.name for result in results if result.holds is False] == FALSE_IN_PRINT
    assert [result.name for result in results if result.holds is None] == SHOWN_IN_FIGURES


def test_counts_and_averages_of_the_text_come_out_of_the_table():
    results = check(printed_values())
    computed = {
        name: results[f"cifar100-{name}"].computed
        for name in ("better-top1", "better-top5", "better-both", "better-one", "gain-top1")
    }
    assert computed == {
        "better-top1": "33",
        "better-top5": "34",
        "better-both": "31",
        "better-one": "5",
        "gain-top1": "0.487",
    }
    assert results["resnet50-60-for-90-top1"].computed == "-0.020"
    assert results["vit-s-share-of-doubling"].computed == "36.5"
    assert results["vit-reproduction"].detail == "Not so: deit3-vit-b plain at 400 epochs (top1)."


@pytest.mark.parametrize(
    ("name", "computed", "possible"),
    [("time-vit-s", "0.075", "0.062 to 0.087"), ("detection-gain", "1.20", "1.100 to 1.300")],
)
def test_the_result_says_where_rounding_explains_a_stated_number(name, computed, possible):
    result = check(printed_values(), name)[name]
    assert result.holds
    assert result.computed == computed
    assert possible in result.detail


def test_a_changed_printed_number_is_noticed():
    values = printed_values()
    key = Key("cifar100-table", "vgg16", "tract-0.1", 200, "top1")
    values[key] = PrintedValue(71.73, 0.16, 2)  # one point less
    held = {name: result.holds for name, result in check(values).items()}
    assert not held["cifar100-better-top1"]
    assert not held["cifar100-average-tract-top1"]
    assert held["cifar100-average-plain-top1"]


# claims on measured values


def test_the_printed_values_taken_as_measured_confirm_the_same_claims():
    results = check_claims(as_measured(printed_values()))
    failing = [result.name for result in results if result.holds is False]
    assert failing == FALSE_IN_PRINT


def test_measured_values_may_be_better_than_stated_but_not_worse():
    values = as_measured(printed_values())
    for key, value in values.items():
        if key.arm == "tract-0.1" and key.recipe == "cifar100-table":
            values[key] = MeasuredValue(value.mean + 1.0, value.deviation, 5)
    results = check(values)
    assert results["cifar100-better-both"].computed == "36"
    assert results["cifar100-better-both"].holds
    assert results["cifar100-gain-top1"].holds
    assert results["cifar100-average-tract-top1"].holds is False  # a level, and off by a point
    slower = {
        Key("cifar10-vit", None, arm, 100, "seconds"): MeasuredValue(seconds, 1.0, 5)
        for arm, seconds in (("plain", 1000.0), ("tract-0.1", 1150.0))
    }
    assert check(slower)["time-cifar10-vit"].holds is False


def test_a_count_over_some_of_the_networks_stays_open():
    values = {
        key: value
        for key, value in as_measured(printed_values()).items()
        if key.network in ("vgg11", "vgg13", "shufflenet")
    }
    result = check(values)["cifar100-better-top1"]
    assert (result.computed, result.holds) == ("2 of 3", None)
    assert "33 of the networks" in result.detail
    assert check(values)["cifar100-average-plain-top1"].holds is None


def test_one_case_refutes_a_claim_about_all():
    lams = (0.05, 0.1, 0.2)
    accuracies = {("plain", length): 90.0 for length in BUDGETS}
    accuracies |= {(f"tract-{lam}", length): 91.0 for lam in lams for length in BUDGETS}
    assert check(make_values("cifar10-vit", accuracies))["cifar10-vit-every"].holds
    accuracies["tract-0.2", 800] = 89.9
    result = check(make_values("cifar10-vit", accuracies))["cifar10-vit-every"]
    assert (result.computed, result.holds) == ("11 of 12", False)
    del accuracies["tract-0.05", 100]
    assert check(make_values("cifar10-vit", accuracies))["cifar10-vit-every"].holds is False
    accuracies["tract-0.2", 800] = 91.0
    assert check(make_values("cifar10-vit", accuracies))["cifar10-vit-every"].holds is None


def test_comparable_means_within_both_deviations():
    name = "cifar10-vit-200-for-400"
    accuracies = {("plain", 400): 90.0, ("tract-0.1", 200): 89.85}
    assert check(make_values("cifar10-vit", accuracies, 0.1))[name].holds
    assert check(make_values("cifar10-vit", accuracies, 0.05))[name].holds is False
    assert check(make_values("cifar10-vit", accuracies, None))[name].holds is False


def test_the_best_lam_is_counted_or_averaged_as_the_text_does():
    accuracies = {("tract-0.05", length): 91.2 for length in BUDGETS}
    accuracies |= {("tract-0.1", length): 91.1 for length in BUDGETS}
    accuracies |= {("tract-0.2", length): 91.0 for length in BUDGETS}
    vit = check(make_values("cifar10-vit", accuracies))["cifar10-vit-best-lam"]
    assert (vit.computed, vit.holds) == ("tract-0.05", False)
    resnets = {
        **make_values("cifar10-resnet18-sgd", accuracies),
        **make_values("cifar10-resnet18-adam", accuracies),
    }
    best = check(resnets)["cifar10-resnet18-best-lam"]
    assert (best.computed, best.holds) == ("8 of 8", True)


def test_ablations_are_compared_inside_their_recipes():
    accuracies = {("plain", length): 90.0 for length in BUDGETS}
    accuracies |= {("tract-0.1", length): 92.0 for length in BUDGETS}
    for arm in ("patch-norm", "dual-patch-norm"):
        accuracies |= {(arm, length): 91.0 for length in BUDGETS} | {(arm, 800): 89.9}
    accuracies["dual-patch-norm", 200] = 92.1  # the one case that the text excepts
    results = check(make_values("cifar10-vit-norms", accuracies))
    for name in ("patch-norm-helps", "patch-norm-at-800", "patch-norm-below-tract"):
        assert results[name].holds
    assert results["dual-patch-norm-like-patch-norm"].holds is False
    ranges = {("[0,1] plain", 200): 80.0, ("[0,255] plain", 200): 60.0}
    ranges |= {("[0,1] tract-0.1", 200): 85.0, ("[0,255] tract-0.1", 200): 86.0}
    results = check(make_values("cifar10-vit-ranges", ranges))
    assert results["value-range-robust"].holds
    assert results["value-range-raw-above-unit"].holds
    both = {("tract-0.1", length): 94.0 for length in BUDGETS}
    both |= {("sgd-first tract-0.1", length): 94.1 for length in BUDGETS}
    assert check(make_values("cifar10-resnet18-adam-sgd", both))["sgd-for-first-layer"].holds


@pytest.mark.parametrize(
    ("recipe", "claims"),
    [
        ("cifar10-resnet18-sgd", ["cifar10-resnet18-sgd-100-for-800"]),
        ("cifar10-resnet18-adam", ["cifar10-resnet18-adam-100-for-400"]),
        ("cifar10-vit", ["cifar10-vit-every", "cifar10-vit-best-lam"]),
        ("cifar10-vit-norms", ["patch-norm-helps", "dual-patch-norm-like-patch-norm"]),
        ("cifar10-vit-ranges", ["value-range-robust", "value-range-raw-above-unit"]),
        ("cifar10-resnet18-adam-sgd", ["sgd-for-first-layer"]),
        ("cifar10-vit-lambda", ["lam-robust"]),
    ],
)
def test_claims_use_arms_and_budgets_of_the_recipes(recipe, claims):
    experiment = find_experiment(recipe)
    runs = {(arm.name, budget): 90.0 for arm in experiment.arms for budget in experiment.budgets}
    for result in check_claims(make_values(recipe, runs), claims):
        assert result.holds is not None, result.detail


def test_speed_ups_span_the_stated_range_only_if_all_experiments_are_there():
    values = as_measured(printed_values())
    assert check(values)["speed-up-range"].holds is None
    curve = {("plain", 100): 90.0, ("plain", 800): 93.0}
    curve |= {("tract-0.1", 100): 93.5, ("tract-0.1", 800): 94.0}
    for recipe in ("cifar10-resnet18-sgd", "cifar10-resnet18-adam", "cifar10-vit"):
        values |= make_values(recipe, curve)
    result = check(values)["speed-up-range"]
    assert (result.computed, result.holds) == ("1.24 to 8.00", True)
    values |= make_values(
        "cifar10-vit", curve | {("tract-0.1", 100): 80.0, ("tract-0.1", 800): 92.0}
    )
    assert check(values)["speed-up-range"].holds is False


def test_no_values_leave_every_claim_open():
    for result in check_claims({}):
        assert (result.computed, result.holds) == (None, None)
        assert result.detail


def test_claims_are_checked_on_records():
    records = [
        make_record(arm, budget, seed, accuracy + seed / 10, seconds=seconds)
        for arm, budget, accuracy, seconds in (
            ("plain", 400, 90.0, 3.0),
            ("tract-0.1", 200, 90.05, 3.0),
            ("plain", 100, 80.0, 3.0),
            ("tract-0.1", 100, 81.0, 3.2),
        )
        for seed in range(2)
    ]
    results = check(measure_values("cifar10-vit", records))
    assert results["cifar10-vit-200-for-400"].holds
    assert (results["time-cifar10-vit"].computed, results["time-cifar10-vit"].holds) == (
        "6.67",
        True,
    )


# claims on lambda, Section 4.4

LAM_RECIPES = {
    "cifar10-resnet18-sgd": BUDGETS,
    "cifar10-resnet18-adam": BUDGETS,
    "cifar10-vit": BUDGETS,
    "cifar100-resnet18-sgd": BUDGETS,
    "cifar100-resnet18-adam": BUDGETS,
    "imagenet-resnet18": (30, 60, 90),
    "imagenet-resnet34": (30, 60, 90),
    "imagenet-resnet50": (30, 60, 90),
}


def make_lam_values(gain_of, deviation=0.1):
    """Return values of all recipes with several λ; ``gain_of`` is of λ and the budget's number."""
    values = {}
    for recipe, budgets in LAM_RECIPES.items():
        accuracies = {
            (f"tract-{lam:g}", budget): 90.0 + gain_of(lam, number)
            for number, budget in enumerate(budgets)
            for lam in (0.05, 0.1, 0.2)
        }
        plain = {("plain", budget): 90.0 for budget in budgets}
        values |= make_values(recipe, accuracies | plain, deviation)
    return values


def test_robust_means_above_plain_at_every_lam_of_the_figure():
    lams = find_experiment("cifar10-vit-lambda").plan()
    arms = {run.run.arm for run in lams} - {"plain"}
    assert len(arms) == 8
    accuracies = {("plain", 200): 90.0} | {(arm, 200): 91.0 for arm in arms}
    result = check(make_values("cifar10-vit-lambda", accuracies))["lam-robust"]
    assert (result.computed, result.holds) == ("8 of 8", True)
    accuracies["tract-1.6", 200] = 89.0
    result = check(make_values("cifar10-vit-lambda", accuracies))["lam-robust"]
    assert (result.computed, result.holds) == ("7 of 8", False)
    assert "tract-1.6" in result.detail


def test_subtle_means_within_the_deviations_in_most_cases():
    near = check(make_lam_values(lambda lam, number: 1 + lam))["lam-subtle"]
    assert (near.computed, near.holds) == ("58 of 58", True)  # 5 x 4 + 3 x 3 budgets, two λ each
    far = check(make_lam_values(lambda lam, number: 1 + 5 * lam))["lam-subtle"]
    assert (far.computed, far.holds) == ("0 of 58", False)
    values = make_lam_values(lambda lam, number: 1 + lam)
    some = {key: value for key, value in values.items() if key.recipe == "cifar10-vit"}
    part = check(some)["lam-subtle"]
    assert (part.computed, part.holds) == ("8 of 8", None)
    assert "50 of 58 cases have no values" in part.detail


def test_the_trend_is_the_slope_of_the_gain_over_the_length():
    rising = check(make_lam_values(lambda lam, number: lam * number))["lam-length"]
    assert (rising.computed, rising.holds) == ("8 of 8", True)
    assert "cifar10-vit +0.15" in rising.detail  # 0.2 - 0.05 points each time the epochs double
    falling = check(make_lam_values(lambda lam, number: -lam * number))["lam-length"]
    assert (falling.computed, falling.holds) == ("0 of 8", False)
    values = make_lam_values(lambda lam, number: lam * number)
    del values[Key("cifar10-vit", None, "tract-0.2", 400, "top1")]
    part = check(values)["lam-length"]
    assert (part.computed, part.holds) == ("7 of 7", None)


def test_the_recommended_lams_are_compared_with_plain_and_with_each_other():
    good = check(make_lam_values(lambda lam, number: lam))
    assert good["lam-recommended"].holds
    assert good["lam-recommended-long"].holds
    worse = check(make_lam_values(lambda lam, number: 0.3 - 4 * lam))
    assert worse["lam-recommended"].holds is False
    assert worse["lam-recommended-long"].holds is False


# claims on time, Section 4.6


@pytest.mark.parametrize(
    ("claim", "recipe", "arm", "budget"),
    [
        ("time-cifar10-vit", "time-cifar10-vit", "tract-0.1", 100),
        ("time-vit-s", "time-deit3-vit-s", "tract", 2),
        ("time-vit-b", "time-deit3-vit-b", "tract", 2),
    ],
)
def test_short_runs_check_the_claims_on_time(claim, recipe, arm, budget):
    plan = find_experiment(recipe).plan()
    assert {(run.run.arm, run.schedule.epochs) for run in plan} == {
        ("plain", budget),
        (arm, budget),
    }
    values = {
        Key(recipe, None, name, budget, "seconds"): MeasuredValue(seconds, 1.0, 3)
        for name, seconds in (("plain", 1000.0), (arm, 1000.5))
    }
    result = check(values, claim)[claim]
    assert result.holds
    assert float(result.computed) == pytest.approx(0.05)
    assert result.detail == f"Measured by {recipe}."
    slow = {key: MeasuredValue(2 * value.mean, 1.0, 3) for key, value in values.items()}
    slow |= {key: value for key, value in values.items() if key.arm == "plain"}
    assert check(slow, claim)[claim].holds is False


@pytest.mark.parametrize(
    ("claim", "full", "budget", "metric", "epochs", "arm"),
    [
        ("time-cifar10-vit", "cifar10-vit", 100, "seconds", 100, "tract-0.1"),
        ("time-vit-s", "deit3-vit-s", 800, "minutes", 2, "tract"),
        ("time-vit-b", "deit3-vit-b", 400, "minutes", 2, "tract"),
    ],
)
def test_runs_that_were_done_alone_come_before_others(claim, full, budget, metric, epochs, arm):
    """Those of the full recipes may have shared the machine."""
    whole, alone = (
        {
            Key(recipe, None, name, length, unit): MeasuredValue(number, 1.0, 1)
            for name, number in (("plain", 1000.0), (arm, 1000.0 * ratio))
        }
        for recipe, length, unit, ratio in (
            (full, budget, metric, 1.1),
            (f"time-{full}", epochs, "seconds", 1.001),
        )
    )
    result = check(whole | alone, claim)[claim]
    assert float(result.computed) == pytest.approx(0.1)
    assert result.detail == f"Measured by time-{full}."
    result = check(whole, claim)[claim]
    assert float(result.computed) == pytest.approx(10)
    assert result.detail == f"Measured by {full}, whose runs may have shared the machine."
    assert "Measured" not in check(printed_values(), claim)[claim].detail
