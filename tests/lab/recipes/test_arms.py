"""Arms: typed fields, names, titles and order."""

from typing import get_args

import pytest

from trainact.errors import TrActValueError
from trainact.lab.recipes.arms import FIELDS, Arm, arm_of_recipe, make_arm, make_lr_arm, parse_arms
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.recipes.parts import PARTS
from trainact.lab.recipes.recipe import OptimizerFields, Recipe, change_recipe, recipe_to_dict


def test_arms_are_the_recipe_with_fields_changed():
    arms = parse_arms(["plain", "tract", "lr", "lr=3"], [0.1, 0.5])
    names = [arm.name for arm in arms]
    assert names == ["plain", "tract-0.1", "tract-0.5", "lr-10", "lr-2", "lr-3"]
    assert arms[3].changes == {"tract.enabled": False, "optimizer.first_layer_lr": 10.0}
    for names, message in (
        (["plan"], "unknown arm 'plan'; did you mean 'plain'"),
        (["plain", "plain"], "named twice"),
        (["lr=0"], "takes a positive number; got '0'"),
        (["lr=x"], "takes a positive number; got 'x'"),
        (["tract=3"], "unknown arm 'tract=3'; did you mean 'tract'"),
        (["tract-0"], "tract-NUMBER takes a positive number; got '0'"),
        (["tract-inf"], "takes a positive number; got 'inf'"),
        (["eigen+"], "unknown arm ''"),
        ([], "there is no arm to run"),
    ):
        with pytest.raises(TrActValueError, match=message):
            parse_arms(names, [0.1])


def test_an_arm_has_fields_and_not_only_a_name():
    plain, tract, lr = parse_arms(["plain", "tract", "lr=3"], [0.1])
    assert (plain.kind, plain.tract, plain.title) == ("plain", False, "plain")
    assert (tract.kind, tract.tract, tract.lam, tract.title) == ("tract", True, 0.1, "TrAct λ=0.1")
    assert (lr.kind, lr.tract, lr.first_layer_lr) == ("lr", False, 3.0)
    assert lr.title == "plain, first-layer lr ×3"
    first = make_arm("sgd-first tract-0.1", {"tract.lam": 0.1, "optimizer.first_layer_name": "sgd"})
    assert (first.kind, first.tract, first.lam) == ("other", None, 0.1)
    assert first.title == first.name
    assert (first.stem, first.others) == ("sgd", {})
    assert first.changes == {"tract.lam": 0.1, "optimizer.first_layer_name": "sgd"}


@pytest.mark.parametrize(
    ("name", "enabled", "lam", "factor", "kind", "title"),
    [
        ("plain", False, 0.1, 1.0, "plain", "plain"),
        ("tract", True, 0.2, 1.0, "tract", "tract"),
        ("tract-0.2", True, 0.2, 1.0, "tract", "TrAct λ=0.2"),
        ("tract-1e-05", True, 1e-5, 1.0, "tract", "TrAct λ=1e-05"),
        ("tract-x", True, 0.1, 1.0, "other", "tract-x"),
        ("lr-10", False, 0.1, 10.0, "lr", "plain, first-layer lr ×10"),
        ("lr-1", False, 0.1, 1.0, "lr", "plain, first-layer lr ×1"),
        ("tract-0.2", True, 0.1, 1.0, "other", "tract-0.2"),
        ("tract-0.1", False, 0.1, 1.0, "other", "tract-0.1"),
        ("lr-10", True, 0.1, 10.0, "other", "lr-10"),
        ("tune-0.1", False, 0.1, 1.0, "other", "tune-0.1"),
    ],
)
def test_the_arm_of_a_record_comes_from_its_recipe(name, enabled, lam, factor, kind, title):
    tables = {"tract": {"enabled": enabled, "lam": lam}, "optimizer": {"first_layer_lr": factor}}
    arm = arm_of_recipe(name, tables)
    assert (arm.name, arm.kind, arm.title) == (name, kind, title)
    assert (arm.tract, arm.lam, arm.first_layer_lr) == (enabled, lam, factor)


def test_arms_are_ordered_by_their_fields():
    arms = parse_arms(["lr=1e6", "lr=10", "lr=3", "tract", "plain"], [0.2, 0.05])
    arms.insert(0, make_arm("adamw", {"optimizer.name": "adamw"}))
    ordered = [arm.name for arm in sorted(arms, key=lambda arm: arm.sort_key)]
    assert ordered == ["plain", "tract-0.05", "tract-0.2", "lr-3", "lr-10", "lr-1e+06", "adamw"]


def test_arms_of_one_name_are_one_arm():
    """The arm ``tract`` of one experiment may have another λ at another budget."""
    one, other = make_arm("tract", {"tract.lam": 0.1}), make_arm("tract", {"tract.lam": 0.2})
    assert isinstance(one, Arm)
    assert len({one, other}) == 1


@pytest.mark.parametrize("name", list_experiments())
def test_a_record_has_the_arm_of_its_experiment(name):
    experiment = find_experiment(name)
    arms = {arm.name: arm for arm in experiment.arms}
    for recipe in experiment.split()[0].plan():
        arm, known = arm_of_recipe(recipe.run.arm, recipe_to_dict(recipe)), arms[recipe.run.arm]
        assert (arm.kind, arm.title) == (known.kind, known.title)


def parse(name, lam=0.1):
    (arm,) = parse_arms([name], [lam])
    return arm


COMBINED = {
    "eigen": ("eigen", "whitened start", {"tract.enabled": False, "model.start": "eigen"}),
    "eigen+tract-0.1": (
        "eigen+tract-0.1",
        "whitened start, TrAct λ=0.1",
        {"tract.enabled": True, "tract.lam": 0.1, "model.start": "eigen"},
    ),
    "lr=0.1+tract+eigen": (
        "eigen+tract-0.1+lr-0.1",
        "whitened start, TrAct λ=0.1, first-layer lr ×0.1",
        {
            "tract.enabled": True, "tract.lam": 0.1, "model.start": "eigen",
            "optimizer.first_layer_lr": 0.1,
        },
    ),
    "muon+eigen+frozen": (
        "muon+eigen+frozen",
        "Muon body, whitened start, frozen",
        {
            "tract.enabled": False, "model.start": "eigen", "optimizer.body": "muon",
            "optimizer.first_layer_frozen": True,
        },
    ),
    "tract-centered": (
        "tract-centered",
        "TrAct λ=0.1, centered",
        {"tract.enabled": True, "tract.lam": 0.1, "tract.center": True},
    ),
    "tract-0.1+tract-relative": (
        "tract-relative",
        "TrAct λ=0.1, relative λ",
        {"tract.enabled": True, "tract.lam": 0.1, "tract.relative": True},
    ),
    "tract-relative+tract-0.05": (
        "tract-0.05+tract-relative",
        "TrAct λ=0.05, relative λ",
        {"tract.enabled": True, "tract.lam": 0.05, "tract.relative": True},
    ),
    "foof+lr-0.3": (
        "foof+lr-0.3",
        "FOOF stem, first-layer lr ×0.3",
        {
            "tract.enabled": False, "optimizer.first_layer_name": "foof",
            "optimizer.first_layer_lr": 0.3,
        },
    ),
    "mac": ("mac", "MAC", {"tract.enabled": False, "optimizer.first_layer_rule": "mac"}),
}  # fmt: skip


@pytest.mark.parametrize("given", list(COMBINED))
def test_parts_combine_in_any_order_to_one_name(given):
    name, title, changes = COMBINED[given]
    arm = parse(given)
    assert (arm.name, arm.title, arm.kind) == (name, title, "rival")
    assert arm.changes == changes
    recipe = change_recipe(Recipe(), {**arm.changes, "run.arm": arm.name})
    again = arm_of_recipe(recipe.arm, recipe_to_dict(recipe))
    assert (again.title, again.kind, again.claims) == (arm.title, arm.kind, arm.claims)
    tables = recipe_to_dict(recipe)
    for dotted, value in changes.items():
        table, _, key = dotted.partition(".")
        other = {**tables, table: {**tables[table], key: flip(value)}}
        assert arm_of_recipe(arm.name, other).kind == "other", dotted


def flip(value):
    """Return another value of a field."""
    if isinstance(value, bool):
        return not value
    return "another" if isinstance(value, str) else 3 * value


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("frozen+tract-0.1", "frozen and tract-0.1 cannot be parts of one arm: a frozen weight is"),
        ("frozen+lr-0.1", "a frozen weight is not trained"),
        ("frozen+mac", "a frozen weight is not trained"),
        ("foof+frozen", "a frozen weight is not trained"),
        ("eigen+random", "both set the same thing"),
        ("eigen+eigen", "both set the same thing"),
        ("lr-3+lr-0.1", "both set the same thing"),
        ("tract-0.1+tract-0.2", "both set the same thing"),
        ("tract-centered+tract-relative", "both set the same thing"),
        ("mac+centralised", "both set the same thing"),
        ("mac+tract-0.1", "each computes the first layer's gradient in its own way"),
        ("foof+tract", "each computes the first layer's gradient in its own way"),
        ("foof+mac", "each computes the first layer's gradient in its own way"),
        ("tract-norm-preserving+tract-0.1", "each computes the first layer's gradient"),
        ("plain+eigen", "plain is an arm by itself"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(name, message):
    with pytest.raises(TrActValueError, match=message):
        parse(name)


def test_every_part_sets_typed_fields_and_is_a_recipe():
    for part in PARTS:
        assert set(part.changes) <= set(FIELDS.values())
        assert part.text
        assert part.title
        arm = parse(part.name)
        assert change_recipe(Recipe(), arm.changes).tract.enabled == arm.tract


def test_every_rule_and_optimizer_of_the_first_layer_is_a_part():
    set_by_parts = {item for part in PARTS for item in part.changes.items()}
    for name in ("first_layer_rule", "first_layer_name", "body"):
        field = OptimizerFields.__dataclass_fields__[name]
        others = {field.default, "sgd"}  # a separate SGD is an arm of the paper's recipes
        for value in set(get_args(field.type)) - others:
            assert (f"optimizer.{name}", value) in set_by_parts


def test_a_record_without_the_newer_fields_has_their_defaults():
    tables = {"tract": {"enabled": True, "lam": 0.1}, "optimizer": {"lr": 0.1}}
    arm = arm_of_recipe("tract-0.1", tables)
    assert (arm.kind, arm.start, arm.frozen, arm.rule, arm.center) == (
        "tract", "default", False, "none", False,
    )  # fmt: skip
    assert arm_of_recipe("eigen+tract-0.1", tables).kind == "other"


def test_a_field_of_the_recipe_itself_does_not_change_what_an_arm_is():
    recipe = change_recipe(Recipe(), {"model.start": "eigen", "optimizer.first_layer_lr": 0.5})
    tables = recipe_to_dict(recipe)
    assert arm_of_recipe("tract-0.1", tables).kind == "tract"
    plain = recipe_to_dict(change_recipe(recipe, {"tract.enabled": False}))
    assert arm_of_recipe("plain", plain).kind == "plain"
    assert arm_of_recipe("plain", tables).kind == "other"


def test_rivals_are_ordered_by_their_parts():
    names = ["foof+lr-3", "eigen+frozen", "eigen+tract-0.2", "random", "eigen+tract-0.1", "eigen"]
    arms = [parse(name) for name in [*names, "lr-3", "plain", "tract-0.1"]]
    arms.append(make_arm("adamw", {"optimizer.name": "adamw"}))
    ordered = [arm.name for arm in sorted(arms, key=lambda arm: arm.sort_key)]
    assert ordered == [
        "plain", "tract-0.1", "lr-3", "eigen", "eigen+tract-0.1", "eigen+tract-0.2",
        "eigen+frozen", "random", "foof+lr-3", "adamw",
    ]  # fmt: skip


def test_a_factor_is_added_to_an_arm():
    assert make_lr_arm(0.3, parse("foof")).name == "foof+lr-0.3"
    assert make_lr_arm(0.3).title == "plain, first-layer lr ×0.3"
    with pytest.raises(TrActValueError, match="frozen and lr-3 cannot"):
        make_lr_arm(3.0, parse("eigen+frozen"))


def test_an_arm_of_a_recipe_file_may_have_parts(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[experiment]\ntitle = "x"\narms = ["plain", "eigen+tract", "eigen+frozen"]\n'
                    "lams = [0.1, 0.2]\n")  # fmt: skip
    names = [arm.name for arm in find_experiment(str(path)).arms]
    assert names == ["plain", "eigen+tract-0.1", "eigen+tract-0.2", "eigen+frozen"]
