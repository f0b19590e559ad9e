"""Recipes: typed fields, unknown names, changes by dotted names, identities and files."""

import dataclasses
import re
from pathlib import Path

import pytest
from torch import nn

from trainact.errors import TrActError, TrActTypeError, TrActValueError
from trainact.lab.models.networks import NETWORKS, build_network
from trainact.lab.models.zoos import build_on_meta
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import (
    TABLES,
    Recipe,
    can_split_batches,
    change_recipe,
    fill_later_fields,
    identify,
    identify_seeds,
    make_recipe,
    read_recipe,
    recipe_to_dict,
    write_recipe,
)
from trainact.lab.records.results import find_runs

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"optimiser": {}}, "unknown table of the recipe 'optimiser'; did you mean 'optimizer'?"),
        (
            {"optimizer": {"momentun": 0.9}},
            "'momentun'; did you mean 'momentum' or 'muon_momentum'?",
        ),
        ({"optimizer": {"lr": "fast"}}, "lr takes a number; got 'fast'"),
        ({"optimizer": {"smoothing_over": "others", "label_smoothing": 0.6}}, "is at most 0.5"),
        ({"data": {"augment_fill": "white"}}, "black, grey"),
        ({"optimizer": {"name": "sdg"}}, "must be one of sgd, adam, adamw, lamb; got 'sdg'"),
        ({"optimizer": {"lr": 0.0}}, "optimizer.lr must be positive; got 0.0"),
        ({"optimizer": {"weight_decay": -1.0}}, "optimizer.weight_decay must be finite and not"),
        ({"optimizer": {"betas": [0.9]}}, "betas takes two numbers in"),
        ({"tract": {"lam": float("nan")}}, "tract.lam must be positive; got nan"),
        ({"tract": {"enabled": 1}}, "enabled takes true or false; got 1"),
        ({"schedule": {"epochs": 2.5}}, "epochs takes a whole number; got 2.5"),
        ({"schedule": {"epochs": True}}, "epochs takes a whole number; got True"),
        ({"schedule": {"milestones": 3.0 + 1j}}, "milestones takes a list"),
        ({"data": {"evaluate_on": "held-out"}}, "but data.held_out is 0"),
        ({"data": {"mean": [0.5]}}, "the same number of channels"),
        ({"data": 3}, "must hold keys and values; got 3"),
        ({"run": {"ema": 1.0}}, "run.ema is a decay in [0, 1); got 1.0"),
        ({"run": {"accumulation": 500}}, "exceeds the images of a batch"),
        ({"optimizer": {"first_layer_name": "sgd"}}, "set optimizer.first_layer_lr"),
        (
            {"optimizer": {"first_layer_rule": "mac"}},
            "'mac' replaces TrAct's gradient; set tract.enab",
        ),
        ({"optimizer": {"first_layer_name": "foof"}}, "a second time; set tract.enabled=false"),
        (
            {
                "tract": {"enabled": False},
                "optimizer": {"first_layer_name": "asgo", "first_layer_rule": "mac"},
            },
            "first_layer_rule='mac' and optimizer.first_layer_name='asgo' are two rules",
        ),
        (
            {
                "tract": {"enabled": False},
                "optimizer": {"first_layer_name": "muon", "first_layer_frozen": True},
            },
            "first_layer_frozen leaves 'muon' no weight to train",
        ),
        (
            {
                "tract": {"enabled": False},
                "optimizer": {"first_layer_rule": "centralised", "first_layer_frozen": True},
            },
            "first_layer_frozen leaves 'centralised' no weight to train",
        ),
        (
            {"optimizer": {"first_layer_name": "muon", "muon_lr": 0.1}},
            "got 0.1. A Muon first layer has the rate optimizer.lr times optimizer.first_layer_lr",
        ),
        ({"optimizer": {"muon_momentum": 1.0}}, "optimizer.muon_momentum is in [0, 1); got 1.0"),
        ({"optimizer": {"loss": "binary", "label_smoothing": 0.1}}, "needs targets of 0 and 1"),
        (
            {"data": {"test_crop": 1.5}},
            "data.test_crop is a fraction of the side, at most 1; got 1.5",
        ),
        ({"data": {"colour_jitter": 2.0}}, "data.colour_jitter is at most 1; got 2.0"),
        ({"data": {"repeats": 0}}, "data.repeats must be positive; got 0"),
        ({"optimizer": {"norm_bias_lr": 0.0}}, "optimizer.norm_bias_lr must be positive"),
        ({"optimizer": {"units": "decoupled"}}, "set optimizer.name='sgd', optimizer.nesterov"),
        ({"optimizer": {"momentum": 1.0}}, "optimizer.momentum is in [0, 1); got 1.0"),
        ({"optimizer": {"nesterov": True, "momentum": 0.0}}, "set optimizer.momentum above 0"),
        ({"optimizer": {"label_smoothing": 1.0}}, "from the label, in [0, 1); got 1.0"),
        ({"data": {"mean": [0.5, 0.5], "std": [0.2, 0.0]}}, "data.std must be positive; got 0.0"),
        (
            {
                "tract": {"enabled": False},
                "optimizer": {
                    "units": "decoupled",
                    "nesterov": True,
                    "reduction": "sum",
                    "first_layer_name": "foof",
                },
            },
            "optimizer.units='decoupled' is not defined for optimizer.first_layer_name='foof'",
        ),
        (
            {"model": {"start": "eigen", "weights": "a.safetensors"}},
            "model.start='eigen' would replace the first layer's pretrained weights",
        ),
        (
            {"model": {"start": "eigen", "arguments": {"pretrained": True}}},
            "model.start='eigen' would replace the first layer's pretrained weights",
        ),
        (
            {"optimizer": {"lookahead_steps": 5, "lookahead_decay": 1.5}},
            "optimizer.lookahead_decay is at most 1; got 1.5",
        ),
        (
            {"schedule": {"name": "triangle", "triangle_peak": 1.0}},
            "a part of the run between 0 and 1; got 1.0",
        ),
        ({"optimizer": {"muon_normalise": True}}, "set optimizer.body='muon'"),
        (
            {"schedule": {"name": "triangle", "warmup_epochs": 1.0}},
            "set schedule.warmup_epochs=0",
        ),
        ({"tract": {"moment_decay": 1.0}}, "tract.moment_decay is a decay in [0, 1); got 1.0"),
        ({"model": {"start_images": 0}}, "model.start_images must be positive; got 0"),
        ({"model": {"start": "zero"}}, "must be one of default, eigen, random, scaled; got 'zero'"),
        (
            {"optimizer": {"first_layer_frozen": True}},
            "optimizer.first_layer_frozen leaves 'TrAct' no weight to train; set it to false, or tr",
        ),
        (
            {
                "tract": {"enabled": False},
                "optimizer": {
                    "name": "adam",
                    "first_layer_frozen": True,
                    "first_layer_name": "sgd",
                },
            },
            "optimizer.first_layer_frozen leaves 'sgd' no weight to train",
        ),
    ],
)
def test_a_wrong_recipe_says_what_came_and_what_is_accepted(tables, message):
    with pytest.raises(TrActError, match=re.escape(message)):
        make_recipe(tables)


def test_every_field_can_be_set_by_its_dotted_name_and_comes_back_from_a_file(tmp_path):
    others = {
        "data.augment_fill": "grey", "optimizer.smoothing_over": "others",
        "optimizer.label_smoothing": "0.1", "optimizer.momentum": "0.5", "model.positions": "bicubic",
        "data.storage": "stream", "data.evaluate_on": "test", "data.crop": "none",
        "data.policy": "autoaugment-cifar10", "data.values": "unit", "optimizer.name": "adam",
        "optimizer.first_layer_name": "sgd", "schedule.name": "steps", "schedule.per": "epoch",
        "run.precision": "bf16", "run.tracker": "wandb", "tract.moment": "float64",
        "optimizer.betas": "0.8,0.9", "run.ema": "0.5", "data.mean": "0.1,0.2",
        "data.crop_fill": "reflect", "data.interpolation": "bicubic",
        "schedule.cosine_over": "run", "optimizer.loss": "cross-entropy",
        "data.flip_order": "alternating", "optimizer.reduction": "sum", "optimizer.units": "step",
        "optimizer.lookahead_decay": "0.5",
        "data.std": "[0.3, 0.4]", "tract.layers": "a.b,c", "schedule.milestones": "3,4.5",
        "model.start": "default", "model.start_scale": "unit", "tract.moment_decay": "0.9",
        "optimizer.first_layer_frozen": "false", "optimizer.first_layer_rule": "none",
        "optimizer.body": "muon", "optimizer.muon_momentum": "0.9",
    }  # fmt: skip
    changes = {}
    for table, cls in TABLES.items():
        for field in dataclasses.fields(cls):
            name = f"{table}.{field.name}"
            if name in others:
                changes[name] = others[name]
            elif field.type is bool:
                changes[name] = "false" if field.default else "true"
            elif field.type in (int, float):
                changes[name] = str(field.default + 1)
            elif field.type is str:
                changes[name] = "other"
    changes["model.arguments.width"] = "16"
    recipe = change_recipe(Recipe(), changes)
    before, after = recipe_to_dict(Recipe()), recipe_to_dict(recipe)
    unchanged = [
        f"{table}.{key}" for table in before for key in before[table]
        if before[table][key] == after[table][key]
    ]  # fmt: skip
    assert unchanged == [
        "data.evaluate_on", "model.start", "optimizer.units", "optimizer.first_layer_frozen",
        "optimizer.first_layer_rule", "optimizer.loss",
    ]  # fmt: skip
    assert recipe.tract.layers == ("a.b", "c")
    assert recipe.data.std == (0.3, 0.4)
    assert recipe.model.arguments == {"width": 16}
    write_recipe(recipe, tmp_path / "recipe.toml")
    assert read_recipe(tmp_path / "recipe.toml") == recipe


@pytest.mark.parametrize("text", ["2024-01-01", "1_000", "true", "0.10", '"quoted"', "[1]", "nan"])
def test_a_field_of_text_keeps_its_text(text):
    assert change_recipe(Recipe(), {"data.folder": text}).data.folder == text


def test_names_of_layers_are_text_or_a_list_of_texts():
    for text, layers in (("0.10", ("0.10",)), ("0.10,1_0", ("0.10", "1_0")), ('["a"]', ("a",))):
        assert change_recipe(Recipe(), {"tract.layers": text}).tract.layers == layers


def test_an_unknown_field_names_the_nearest():
    with pytest.raises(TrActValueError, match=r"did you mean 'optimizer.lr'"):
        change_recipe(Recipe(), {"optimiser.lr": 1.0})
    with pytest.raises(TrActValueError, match="did you mean 'nesterov'"):
        change_recipe(Recipe(), {"optimizer.nestrov": True})


def test_a_file_that_is_not_toml_is_named(tmp_path):
    (tmp_path / "bad.toml").write_text("[data\nname = 3")
    with pytest.raises(TrActValueError, match=r"bad\.toml cannot be read as TOML"):
        read_recipe(tmp_path / "bad.toml")
    with pytest.raises(TrActValueError, match=r"absent\.toml cannot be read"):
        read_recipe(tmp_path / "absent.toml")


def test_the_identity_ignores_only_what_changes_no_number():
    base = identify(Recipe())
    for name in ("run.arm", "run.tracker", "data.folder"):
        value = "tensorboard" if name == "run.tracker" else "x"
        assert identify(change_recipe(Recipe(), {name: value})) == base
    assert identify(change_recipe(Recipe(), {"data.workers": 3})) == base
    assert identify(change_recipe(Recipe(), {"run.keep_weights": False})) == base
    assert identify(change_recipe(Recipe(), {"run.seed": 3})) != base
    assert identify(change_recipe(Recipe(), {"tract.enabled": False})) != base


def test_fields_that_came_later_do_not_change_the_identity_of_runs_before_them():
    assert identify(Recipe()) == "1375dba54e"
    assert identify(find_experiment("cifar10-resnet18-sgd").plan()[0]) == "8ad4f394d9"
    later = {"data.mixup": 0.8, "model.weights": "a.pth", "optimizer.loss": "binary",
             "data.flip_order": "alternating", "data.test_views": True,
             "optimizer.reduction": "sum", "optimizer.lookahead_steps": 5,
             "optimizer.norm_bias_lr": 64.0, "optimizer.first_layer_bias_epochs": 3}  # fmt: skip
    for name, value in later.items():
        assert identify(change_recipe(Recipe(), {name: value})) != "1375dba54e"


def test_a_record_that_lacks_later_fields_has_their_defaults():
    tables = recipe_to_dict(change_recipe(Recipe(), {"model.start": "eigen"}))
    assert fill_later_fields(tables) == tables
    old = {table: dict(row) for table, row in tables.items()}
    del old["tract"]["center"], old["optimizer"]["first_layer_frozen"], old["schedule"]
    filled = fill_later_fields(old)
    assert filled["tract"]["center"] is filled["optimizer"]["first_layer_frozen"] is False
    assert filled["schedule"]["cosine_over"] == "rest"
    assert filled["model"]["start"] == "eigen"
    assert "center" not in old["tract"]


def test_the_identities_of_seeds_are_those_of_recipes_with_these_seeds():
    recipe = find_experiment("cifar10-vit-norms").plan()[-1]
    seeds = [0, 3, 7]
    recipes = [change_recipe(recipe, {"run.seed": seed}) for seed in seeds]
    assert identify_seeds(recipe, seeds) == [identify(one) for one in recipes]


def test_micro_batches_count_only_where_they_change_more_than_rounding():
    for name in ("lab:vit-cifar", "lab:deit3-small", "vit-cifar"):
        one, split = (
            change_recipe(Recipe(), {"model.name": name, "run.accumulation": parts})
            for parts in (1, 8)
        )
        assert identify(one) == identify(split)
        own = {"optimizer.first_layer_rule": "mac", "tract.enabled": False}
        assert identify(change_recipe(one, own)) != identify(change_recipe(split, own))
    for name in ("lab:resnet18", "timm:vit_tiny_patch16_224", "small_models:make_tiny"):
        one, split = (
            change_recipe(Recipe(), {"model.name": name, "run.accumulation": parts})
            for parts in (1, 8)
        )
        assert identify(one) != identify(split)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_without_batch_norm_are_known(name):
    network = build_on_meta(lambda: build_network(name, 10))
    has_batch_norm = any(isinstance(m, nn.modules.batchnorm._NormBase) for m in network.modules())
    recipe = change_recipe(Recipe(), {"model.name": f"lab:{name}"})
    assert can_split_batches(recipe) is not has_batch_norm


def test_the_committed_records_keep_their_recipe_ids():
    records = [run.record for run in find_runs([RESULTS]) if run.record is not None]
    assert len(records) > 200
    for record in records:
        assert identify(make_recipe(record["recipe"])) == record["recipe_id"]


def test_a_value_of_the_wrong_kind_is_a_type_error_too():
    with pytest.raises(TrActTypeError):
        make_recipe({"optimizer": {"lr": "fast"}})
