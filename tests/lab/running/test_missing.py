"""What a dry run says of data and weights that are not there."""

import dataclasses

import pytest

from data_cases import write_folder
from trainact.lab.commands.cli import main
from trainact.lab.data.cache import cache_file
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import Recipe, change_recipe
from trainact.lab.running.missing import list_missing
from voc_cases import make_voc


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINACT_CACHE", str(tmp_path / "cache"))


def plan(name, **changes):
    """Return the runs of a recipe's first seed, with fields set by dotted name."""
    experiment = find_experiment(name)
    recipe = change_recipe(experiment.recipe, changes)
    return dataclasses.replace(experiment, recipe=recipe, seeds=experiment.seeds[:1]).plan()


def test_nothing_is_missing_for_photos():
    assert list_missing([Recipe(), Recipe()]) == []
    assert list_missing([]) == []


def test_cifar_that_is_not_cached_will_be_downloaded(tmp_path):
    [text] = list_missing(plan("cifar10-vit"))
    assert text.startswith("the data set cifar10 is not in the cache")
    assert "will be downloaded" in text
    cache_file("cifar10").parent.mkdir()
    cache_file("cifar10").touch()
    assert list_missing(plan("cifar10-vit")) == []


def test_a_data_set_needs_its_path(tmp_path):
    [text] = list_missing(plan("imagenet-resnet18"))
    assert text.startswith("the data set imagenet: give --data PATH; docs/data.md says")
    assert "'trainact data imagenet --data PATH' checks it" in text
    [text] = list_missing(plan("imagenet-resnet18", **{"data.folder": "path/to/imagenet"}))
    assert text.startswith("the data set imagenet: there is no folder path/to/imagenet; ")
    for there in (str(tmp_path), "ILSVRC/imagenet-1k"):
        assert list_missing(plan("imagenet-resnet18", **{"data.folder": there})) == []
    shards = {"data.folder": str(tmp_path / "in-{train,val}-{00..01}.tar")}
    [text] = list_missing(plan("imagenet-resnet18", **shards))
    assert "there is no shard" in text


def test_a_folder_of_ones_own_must_exist(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 1})
    recipes = [change_recipe(Recipe(), {"data.name": str(place)}) for place in (root, root / "no")]
    assert list_missing(recipes) == [f"there is no data set {root / 'no'}"]


def test_a_detector_needs_images_and_weights(tmp_path):
    data, weights = list_missing(plan("detection-voc2007"))
    assert data.startswith("the data set voc2007: give --data PATH")
    assert weights.startswith("the weights of VGG-16: give --model.arguments.weights FILE; ")
    given = {"data.folder": str(tmp_path), "model.arguments.weights": str(tmp_path / "vgg16.pth")}
    data, weights = list_missing(plan("detection-voc2007", **given))
    assert "contains no VOCdevkit/VOC2007" in data
    assert f"there is no file {tmp_path / 'vgg16.pth'}" in weights
    make_voc(tmp_path)
    (tmp_path / "vgg16.pth").touch()
    assert list_missing(plan("detection-voc2007", **given)) == []


def test_each_arm_needs_its_initial_weights(tmp_path):
    data = {"data.folder": str(tmp_path)}
    texts = list_missing(plan("transfer-cars", **data))
    assert len(texts) == 2  # four arms start from the weights of two
    assert texts[0].startswith("initial weights: the recipe starts from weights that were trained")
    given = data | {"model.weights": str(tmp_path / "{pretraining}-*" / "w.safetensors")}
    assert len(list_missing(plan("transfer-cars", **given))) == 2
    for arm in ("plain", "tract"):
        (tmp_path / f"{arm}-x").mkdir()
        (tmp_path / f"{arm}-x" / "w.safetensors").touch()
    assert list_missing(plan("transfer-cars", **given)) == []
    smoke = [change_recipe(r, {"run.smoke": True}) for r in plan("transfer-cars", **data)]
    assert list_missing(smoke) == []


def test_a_dry_run_says_what_is_missing_and_how_long_it_takes(capsys, tmp_path):
    words = ["run", "transfer-cars", "--dry-run", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 4
    assert said.err.count("missing: the data set stanford_cars: give --data PATH") == 1
    assert said.err.count("missing: initial weights") == 2
    assert "to do: 4 runs, about 27 h on one GPU" in said.err
    assert main([*words, "--paper-only"]) == 0
    assert "to do: 2 runs, about 13 h on one GPU" in capsys.readouterr().err
