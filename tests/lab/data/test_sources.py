"""Data sets by name: unknown names, and folders of other data sets."""

import shutil

import pytest

from data_cases import write_folder
from trainact.errors import TrActValueError
from trainact.lab.data import DataError, load_data
from trainact.lab.recipes.recipe import DataFields


def load(path, **fields):
    return load_data(DataFields(name=str(path), **fields))


def test_names_of_nothing_are_answered_with_what_is_accepted(tmp_path):
    with pytest.raises(
        TrActValueError, match=r"'cifar'; did you mean 'cifar10' or 'cifar100'\? Acc"
    ):
        load("cifar")
    with pytest.raises(TrActValueError, match="'CIFAR-10'; did you mean 'cifar10'"):
        load("CIFAR-10")
    with pytest.raises(
        TrActValueError, match=r"'qwertz'; there are photos, .* Accepted besides names"
    ):
        load("qwertz")
    with pytest.raises(TrActValueError, match="unknown data set ''"):
        load("")
    (tmp_path / "a.zip").write_text("x")
    with pytest.raises(
        TrActValueError, match=r"a\.zip is a file of unknown type\. Accepted besides names"
    ):
        load(tmp_path / "a.zip")
    for path in (tmp_path / "nowhere", "./nowhere", "nowhere.npz"):
        with pytest.raises(DataError, match=r"there is no file or folder .*nowhere"):
            load(path)


def test_a_folder_for_another_set_than_cifar_is_refused(tmp_path):
    with pytest.raises(TrActValueError, match=r"give its path as data\.name"):
        load("photos", folder=str(tmp_path))


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


def test_data_folder_is_for_named_sets():
    with pytest.raises(
        TrActValueError, match="imagenet, imagenette, flowers102, stanford_cars and voc2007"
    ):
        load_data(DataFields(name="photos", folder="x"))


def test_a_folder_may_have_the_name_of_its_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counts = {f"{part}/{name}": 2 for part in ("train", "val") for name in "ab"}
    write_folder(tmp_path / "imagenet", counts)
    data = load_data(DataFields(name="imagenet", folder="imagenet", image_size=8))
    assert (data.name, len(data.train)) == ("imagenet", 4)
