"""Data sets by name: unknown names, and folders of other data sets."""

import pytest

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
