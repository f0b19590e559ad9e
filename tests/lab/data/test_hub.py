"""Data sets of the Hugging Face hub."""

import sys

import pytest
import torch

from data_cases import make_images, make_table
from trainact.lab.data import DataError, load_data
from trainact.lab.recipes.recipe import DataFields

TRAIN, TEST = make_images(12, size=8, classes=3), make_images(6, seed=1, size=8, classes=3)
NAMES = ["ant", "bee", "cat"]


def load(path, **fields):
    return load_data(DataFields(name=str(path), **fields))


@pytest.fixture
def hub(monkeypatch):
    """A hub with one data set; what was asked of it is in the list."""
    datasets = pytest.importorskip("datasets")
    huggingface_hub = pytest.importorskip("huggingface_hub")
    asked = []

    def load_dataset(name):
        import datasets.config

        asked.append((name, datasets.config.HF_HUB_OFFLINE))
        features = datasets.Features(
            {"img": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
        )
        return {
            split: datasets.Dataset(make_table(part).cast(features.arrow_schema))
            for split, part in (("train", TRAIN), ("test", TEST))
        }

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    return asked


@pytest.mark.parametrize("name", ["owner/insects", "hf:owner/insects"])
def test_a_data_set_of_the_hub_is_read(hub, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = load(name)
    assert hub == [("owner/insects", False)]
    assert data.name == "owner/insects"
    assert data.classes == ("ant", "bee", "cat")
    assert torch.equal(data.train.images, TRAIN.images)
    assert len(load(name, storage="stream", test_images=3).test) == 3


def test_a_hub_that_does_not_answer_leaves_its_own_cache(hub, monkeypatch):
    import datasets.config
    import huggingface_hub

    def fail(*_, **__):
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)
    before = datasets.config.HF_HUB_OFFLINE
    assert len(load("owner/insects").train) == 12
    assert hub == [("owner/insects", True)]
    assert datasets.config.HF_HUB_OFFLINE is before
    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(
        DataError,
        match=r"hub's owner/insects cannot be loaded \(ConnectionError: no network\); there is no folder of",
    ):
        load("owner/insects")


def test_what_the_hub_says_is_passed_on(hub, monkeypatch):
    import datasets

    def fail(name):
        raise ValueError("Config name is missing")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"\(ValueError: Config name is missing\)"):
        load("hf:owner/insects")
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {})
    with pytest.raises(DataError, match="has no split 'train'; it has none"):
        load("hf:owner/insects")


def test_without_the_datasets_library_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install datasets"):
        load("hf:owner/insects")
