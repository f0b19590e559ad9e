"""The recipes of ImageNet's scale: each family learns, resumes and runs from the command line."""

import shutil

import pytest
import torch

from data_cases import write_folder
from lab_helpers import make_quick, measure_fixed_batch, without_times
from result_folders import find_records
from trainact.errors import TrActValueError
from trainact.lab.commands.cli import main
from trainact.lab.data import DataError, load_data
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.recipes.recipe import DataFields, change_recipe
from trainact.lab.running.smoke import shrink
from trainact.lab.training.stream import StreamDataset
from trainact.lab.training.train import train

NARROW = {"model.arguments.width": 48, "model.arguments.depth": 2, "model.arguments.heads": 3}
RESNET = {"model.name": "lab:resnet18-imagenet", "model.arguments.width": 8}
FAMILIES = {
    "imagenet-resnet18": ("imagenette", RESNET | {"optimizer.lr": 0.02}),
    "deit3-vit-s": ("imagenette", NARROW),
    "deit3-vit-s-finetune-a": ("imagenette", NARROW | {"optimizer.lr": 1e-3}),
    "deit3-vit-s-finetune-b": ("imagenette", NARROW | {"optimizer.lr": 4e-3}),
    "transfer-cars": ("stanford_cars", NARROW),
    "transfer-flowers102-adamw": ("flowers102", NARROW | {"optimizer.lr": 1e-3}),
    "imagenette-cpu-resnet": ("imagenette", {"model.arguments.width": 8, "optimizer.lr": 0.02}),
    "imagenette-cpu-vit": ("imagenette", {"model.arguments.width": 48, "model.arguments.depth": 2}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_on_a_fixed_batch_falls(samples, tmp_path, name):
    folder, changes = FAMILIES[name]
    recipe = shrink(find_experiment(name)).recipe
    recipe = change_recipe(recipe, {"data.name": str(samples / folder), "data.image_size": 32,
                                    "schedule.warmup_epochs": 0, "schedule.epochs": 3,
                                    "run.device": "cpu", "run.ema": 0, **changes})  # fmt: skip
    before, after = measure_fixed_batch(recipe, tmp_path, epochs=3)
    assert after < before


def _is_large(name):
    data = find_experiment(name).recipe.data
    return data.image_size and data.name != "voc2007"


def test_every_large_recipe_is_shrunk_to_small_pictures():
    large = [name for name in list_experiments() if _is_large(name)]
    assert len(large) == 21
    for name in large:
        small = shrink(find_experiment(name)).recipe
        assert small.data.name == "photos"
        assert (small.data.image_size, small.data.classes, small.data.workers) in {
            (64, 0, 0), (48, 0, 0), (32, 0, 0),
        }  # fmt: skip


def test_the_settings_that_the_paper_states_are_those_of_the_recipes():
    runs = {r.schedule.epochs: r for r in find_experiment("imagenet-resnet50").plan()}
    rates = {e: (r.optimizer.lr, r.schedule.milestones) for e, r in runs.items()}
    assert rates == {30: (0.141, (10, 20)), 60: (0.1, (20, 40)), 90: (0.1, (30, 60))}
    lams = {r.schedule.epochs: r.tract.lam for r in find_experiment("deit3-vit-s").plan()}
    assert lams == {400: 0.1, 800: 0.2}
    for name, epochs in (("cifar10", 200), ("cifar100", 200), ("flowers102", 5000), ("cars", 1000)):
        plan = find_experiment(f"transfer-{name}").plan()
        stages = {(r.model.pretraining, r.tract.enabled) for r in plan}
        assert stages == {(a, b) for a in ("plain", "tract") for b in (True, False)}
        assert {r.schedule.epochs for r in plan} == {epochs}
        assert all(r.optimizer.nesterov for r in plan)  # as timm's sgd has it


def test_a_smoke_run_of_the_command_line_takes_a_folder_and_resumes(samples, tmp_path, capsys):
    words = ["run", "imagenette-cpu-vit", "--smoke", "--out", str(tmp_path),
             "--data", str(samples / "imagenette"), "--arms", "plain,tract-0.1"]  # fmt: skip
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "2 runs complete, 0 diverged, 0 failed" in told
    assert f"trainact report {tmp_path / 'imagenette-cpu-vit'}\n" in told
    records = find_records(tmp_path)
    assert {r["arm"] for r in records} == {"plain", "tract-0.1"}
    assert {r["data"]["name"] for r in records} == {"imagenette"}
    assert main(words) == 0


def test_without_its_images_or_its_weights_a_recipe_says_what_to_give(tmp_path, capsys):
    out = ["--out", str(tmp_path), "--arms", "plain", "--run.precision", "no"]
    assert main(["run", "deit3-vit-s-finetune-a", *out]) == 2
    assert "imagenet is not downloaded automatically" in capsys.readouterr().err
    folder = write_folder(tmp_path / "set", {"train/a": 3, "train/b": 3, "val/a": 1, "val/b": 1})
    place = ["--data", str(folder)]
    assert main(["run", "deit3-vit-s-finetune-a", *out, *place]) == 2
    assert "the recipe is for 1000 (data.classes)" in capsys.readouterr().err
    small = ["--data.classes", "2", "--data.batch_size", "4"]
    assert main(["run", "deit3-vit-s-finetune-a", *out, *place, *small]) == 1
    assert "starts from weights that were trained in the arm 'plain'" in capsys.readouterr().err


def test_a_class_folder_that_is_missing_is_noticed(tmp_path):
    counts = {f"{part}/n{i}": 2 for part in ("train", "val") for i in range(3)}
    root = write_folder(tmp_path / "set", counts)
    assert len(load_data(DataFields(name=str(root), classes=3)).classes) == 3
    shutil.rmtree(root / "train" / "n1")
    with pytest.raises(DataError, match="the class 'n1', which has no training images"):
        load_data(DataFields(name=str(root), classes=3))
    shutil.rmtree(root / "val" / "n1")
    with pytest.raises(DataError, match="has 2 classes to train on, from 'n0' to 'n2'"):
        load_data(DataFields(name=str(root), classes=3))


class StoppedError(Exception):
    pass


def test_a_folder_that_changes_between_two_attempts_is_refused(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 40, "train/b": 40, "val/a": 4, "val/b": 4})
    recipe = make_quick(data__name=str(root), data__train_images=0, data__test_images=0,
                        data__crop="resized", data__image_size=8)  # fmt: skip

    def stop(event):
        if event.kind == "epoch" and event.epoch == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(recipe, tmp_path / "runs", stop)
    file = root / "train" / "a" / "003.png"
    kept = file.read_bytes()
    file.write_bytes(kept + b"more")
    with pytest.raises(DataError, match="is not the data set that this run started with"):
        train(recipe, tmp_path / "runs", lambda event: None)
    file.write_bytes(kept)
    resumed = train(recipe, tmp_path / "runs", lambda event: None)
    assert resumed["sessions"] == 2
    whole = train(recipe, tmp_path / "whole", lambda event: None)
    assert without_times(resumed) == without_times(whole)


def test_the_part_of_a_test_image_and_the_fill_of_a_crop_are_the_recipes(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 2, "val/a": 2}, size=40)
    for file in root.rglob("*.png"):
        from PIL import Image

        picture = Image.new("RGB", (40, 40), (255, 255, 255))
        picture.paste((90, 90, 90), (4, 4, 36, 36))
        picture.save(file)
    images = load_data(DataFields(name=str(root), storage="stream")).test

    def read(train, **fields):
        return StreamDataset(images, DataFields(flip=False, **fields), 20, train, 0)[0, 0, 0][0]

    whole, part = read(False, test_crop=1.0), read(False, test_crop=0.5)
    assert int(whole[0, 0, 0]) == 255
    assert part.unique().tolist() == [90]
    assert torch.equal(read(False, crop="resized"), read(False, test_crop=0.875))
    corners = [
        StreamDataset(images, DataFields(flip=False, crop_fill=fill), 20, True, 0)[0, at, 0][
            0
        ].min()
        for fill in ("black", "reflect")
        for at in range(6)
    ]
    assert min(map(int, corners[:6])) == 0
    assert min(map(int, corners[6:])) >= 85
    assert not torch.equal(
        read(False, test_crop=1.0), read(False, test_crop=1.0, interpolation="bicubic")
    )


def test_data_folder_is_for_named_sets():
    with pytest.raises(
        TrActValueError, match="imagenet, imagenette, flowers102, stanford_cars or voc2007"
    ):
        load_data(DataFields(name="photos", folder="x"))
