"""Data and weights that have changed since a run started are refused."""

import shutil

import numpy as np
import pytest
import safetensors.torch

from data_cases import write_folder
from lab_helpers import make_quick, without_times
from trainact.lab.data.images import DataError
from trainact.lab.recipes.recipe import change_recipe
from trainact.lab.records.record import RunFolder
from trainact.lab.running import runner
from trainact.lab.running.display import Display
from trainact.lab.running.plan import place_runs
from trainact.lab.running.runner import run_all
from trainact.lab.training import train as train_module
from trainact.lab.training.resume_checks import check_record
from trainact.lab.training.train import train


def ignore(event):
    del event


def save_images(path, seed):
    rng = np.random.default_rng(seed)
    np.savez(
        path,
        train_images=rng.integers(0, 256, (64, 8, 8, 3), dtype=np.uint8),
        train_labels=np.arange(64) % 2,
        test_images=rng.integers(0, 256, (8, 8, 8, 3), dtype=np.uint8),
        test_labels=np.arange(8) % 2,
    )
    return path


@pytest.fixture
def recipe(tmp_path):
    name = str(save_images(tmp_path / "set.npz", 0))
    return make_quick(data__name=name, data__train_images=0, data__test_images=0)


def test_data_that_changed_since_the_run_began_are_refused(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(train_module, "REPORT_EVERY", 1)

    def stop(event):
        if event.kind == "epoch" and event.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path, stop)
    save_images(tmp_path / "set.npz", 1)
    with pytest.raises(DataError, match="is not the data set that this run started with"):
        train(recipe, tmp_path, ignore)
    save_images(tmp_path / "set.npz", 0)
    assert train(recipe, tmp_path, ignore)["sessions"] == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_data_that_changed_since_the_run_ended_are_refused(recipe, tmp_path, jobs):
    runs = place_runs([recipe], tmp_path)
    [first] = run_all(runs, 1, Display())
    assert first.failure is None
    save_images(tmp_path / "set.npz", 1)
    [second] = run_all(runs, jobs, Display())
    assert second.record is None
    assert "is not the data set that this run started with" in second.failure
    save_images(tmp_path / "set.npz", 0)
    [third] = run_all(runs, jobs, Display())
    assert third.failure is None
    assert third.record["seconds"] == first.record["seconds"]


def test_the_place_of_the_data_does_not_matter(tmp_path):
    """The content of ``data.folder`` is part of a run, the path is not."""
    counts = {"train/a": 8, "train/b": 8, "val/a": 4}
    for name, more in (("here", 0), ("there", 0), ("elsewhere", 2)):
        write_folder(tmp_path / name, counts | {"train/b": 8 + more})
    recipes = {
        name: make_quick(
            data__name="imagenette", data__folder=str(tmp_path / name), data__image_size=8,
            data__train_images=0, data__test_images=0, data__batch_size=4, schedule__epochs=1,
        )
        for name in ("here", "there", "elsewhere")
    }  # fmt: skip
    record = train(recipes["here"], tmp_path, ignore)
    assert train(recipes["there"], tmp_path, ignore)["seconds"] == record["seconds"]
    with pytest.raises(DataError, match="imagenette is not the data set"):
        train(recipes["elsewhere"], tmp_path, ignore)


def test_data_with_which_no_run_could_begin_give_no_record_back(tmp_path):
    folder = write_folder(tmp_path / "set", {"train/a": 8, "train/b": 8, "val/a": 4})
    recipe = make_quick(
        data__name="imagenette", data__folder=str(folder), data__image_size=8, data__classes=2,
        data__train_images=0, data__test_images=0, data__batch_size=4, schedule__epochs=1,
    )  # fmt: skip
    train(recipe, tmp_path, ignore)
    shutil.rmtree(folder / "train" / "b")
    with pytest.raises(DataError, match="has 1 class; a classifier needs at least two"):
        train(recipe, tmp_path, ignore)
    [result] = run_all(place_runs([recipe], tmp_path), 1, Display())
    assert "a classifier needs at least two" in result.failure


def test_a_record_outlives_its_data(recipe, tmp_path):
    record = train(recipe, tmp_path, ignore)
    (tmp_path / "set.npz").unlink()
    assert train(recipe, tmp_path, ignore)["seconds"] == record["seconds"]


def test_a_record_outlives_a_disk_to_which_links_lead(tmp_path):
    disk = write_folder(tmp_path / "disk", {"train/a": 8, "train/b": 8, "val/a": 4})
    for file in disk.rglob("*.png"):
        link = tmp_path / "set" / file.relative_to(disk)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    recipe = make_quick(
        data__name=str(tmp_path / "set"), data__image_size=8, data__train_images=0,
        data__test_images=0, data__batch_size=4, schedule__epochs=1,
    )  # fmt: skip
    record = train(recipe, tmp_path, ignore)
    shutil.rmtree(disk)
    assert train(recipe, tmp_path, ignore)["seconds"] == record["seconds"]


def test_a_place_that_cannot_be_read_is_no_reason_to_refuse_a_record(recipe, tmp_path, monkeypatch):
    runs = place_runs([recipe], tmp_path)
    run_all(runs, 1, Display())

    def refuse(fields, note):
        raise PermissionError("not yours")

    monkeypatch.setattr(runner, "load_data", refuse)
    for jobs in (1, 2):
        [result] = run_all(runs, jobs, Display())
        assert result.failure is None


def test_nothing_is_fetched_to_give_a_record_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar10").mkdir()  # of the same name, and something else
    record = {"data": {"fingerprint": "0" * 64}, "model": {}}

    def fetch(fields):
        raise AssertionError(f"{fields.name} was loaded")

    for name in ("cifar10", "photos", "owner/name"):
        check_record(record, make_quick(data__name=name), fetch)


def test_weights_that_changed_since_the_run_began_are_refused(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(train_module, "REPORT_EVERY", 1)
    train(recipe, tmp_path, ignore)
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(RunFolder(tmp_path, recipe).weights_path.read_bytes())
    fine = change_recipe(recipe, {"model.weights": str(weights)})

    def stop(event):
        if event.kind == "epoch" and event.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(fine, tmp_path, stop)
    tensors = safetensors.torch.load_file(weights)
    safetensors.torch.save_file({name: t + 1 for name, t in tensors.items()}, weights)
    with pytest.raises(
        ValueError, match="initial weights does not hold the weights that this run started with"
    ):
        train(fine, tmp_path, ignore)
    safetensors.torch.save_file(tensors, weights)
    assert train(fine, tmp_path, ignore)["sessions"] == 2


def test_weights_that_changed_since_the_run_ended_are_refused(recipe, tmp_path):
    before = RunFolder(tmp_path, recipe).weights_path
    train(recipe, tmp_path, ignore)
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(before.read_bytes())
    fine = change_recipe(recipe, {"model.weights": str(weights)})
    record = train(fine, tmp_path, ignore)
    assert train(fine, tmp_path, ignore)["seconds"] == record["seconds"]
    tensors = safetensors.torch.load_file(weights)
    safetensors.torch.save_file({name: t + 1 for name, t in tensors.items()}, weights)
    with pytest.raises(ValueError, match="does not hold the weights that this run started with"):
        train(fine, tmp_path, ignore)
    weights.unlink()
    assert train(fine, tmp_path, ignore)["seconds"] == record["seconds"]


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
