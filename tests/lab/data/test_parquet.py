"""Parquet files of images."""

import pickle

import numpy as np
import pyarrow
import pytest
import torch

from data_cases import make_images, make_table, to_pixels, write_parquet
from trainact.lab.data import DataError, ImageStream, ImageTensor, load_data, parquet
from trainact.lab.recipes.recipe import DataFields

TRAIN, TEST = make_images(12, size=8, classes=3), make_images(6, seed=1, size=8, classes=3)
NAMES = ["ant", "bee", "cat"]


def load(path, **fields):
    return load_data(DataFields(name=str(path), **fields))


@pytest.mark.parametrize("label", ["label", "fine_label", "labels", "kind"])
def test_parquet_files_are_read_with_their_class_names(tmp_path, label):
    tables = {"train": make_table(TRAIN, label, NAMES), "test": make_table(TEST, label, NAMES)}
    data = load(write_parquet(tmp_path / "insects", tables))
    assert data.name == "insects"
    assert data.classes == ("ant", "bee", "cat")
    assert isinstance(data.train, ImageTensor)
    assert torch.equal(data.train.images, TRAIN.images)
    assert torch.equal(data.test.images, TEST.images)
    assert torch.equal(data.train.labels, TRAIN.labels)


def test_files_of_several_parts_are_joined_in_order(tmp_path):
    table = make_table(TRAIN)
    tables = {f"train-{i:05}-of-00003": table.slice(4 * i, 4) for i in range(3)}
    folder = write_parquet(tmp_path / "data", {**tables, "validation-0": make_table(TEST)})
    data = load(folder.parent)
    assert torch.equal(data.train.images, TRAIN.images)
    assert data.classes == ("0", "1", "2")


def test_a_validation_split_is_trained_on_if_its_file_is_named_so(tmp_path):
    """As docs/data.md says for Flowers-102."""
    half = len(TRAIN) // 2
    tables = {"train-00000-of-00001": make_table(TRAIN).slice(0, half)}
    tables["train-validation"] = make_table(TRAIN).slice(half)
    data = load(write_parquet(tmp_path, {**tables, "test-00000-of-00001": make_table(TEST)}))
    assert torch.equal(data.train.images, TRAIN.images)
    assert torch.equal(data.test.images, TEST.images)


def test_a_file_is_of_the_split_whose_whole_name_it_begins_with(tmp_path, caplog):
    tables = {"train-0": make_table(TRAIN), "validation-0": make_table(TEST)}
    data = load(write_parquet(tmp_path, {**tables, "trainval": make_table(TEST)}))
    assert (len(data.train), len(data.test)) == (len(TRAIN), len(TEST))
    assert "not used" not in caplog.text


def test_a_column_of_bare_bytes_and_other_columns_are_understood(tmp_path):
    def change(images):
        table = make_table(images)
        encoded = table.column("img").combine_chunks().field("bytes")
        columns = {"id": list(range(len(images))), "blob": encoded, "image": encoded}
        return pyarrow.table({**columns, "label": table.column("label")})

    data = load(write_parquet(tmp_path, {"train": change(TRAIN), "test": change(TEST)}))
    assert torch.equal(data.train.images, TRAIN.images)


def test_encoded_images_stay_encoded_in_a_stream_that_can_be_sent(tmp_path):
    folder = write_parquet(tmp_path, {"train": make_table(TRAIN), "test": make_table(TEST)})
    data = load(folder, storage="stream")
    assert isinstance(data.train, ImageStream)
    train = pickle.loads(pickle.dumps(data.train))
    assert np.array_equal(np.array(train.read(5)), to_pixels(TRAIN.images)[5])


def test_large_files_stay_on_the_disk(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr(parquet, "IN_MEMORY", 0)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    tables = {"train": make_table(TRAIN, "label", NAMES), "test": make_table(TEST, "label", NAMES)}
    parts = {"train-0": tables["train"].slice(0, 4), "train-1": tables["train"].slice(4)}
    parts["train-1"] = parts["train-1"].append_column("note", [["x"] * len(parts["train-1"])])
    folder = write_parquet(tmp_path / "insects [2]", {**parts, "test": tables["test"]})
    data = load(folder, storage="stream")
    assert data.classes == ("ant", "bee", "cat")
    assert np.array_equal(np.array(data.train.read(5)), to_pixels(TRAIN.images)[5])
    assert list((tmp_path / "cache").rglob("*.arrow"))
    (folder / "test.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(DataError, match=r"test\.parquet and 0 more cannot be read as parquet"):
        load(folder, storage="stream")


def test_a_split_without_labels_is_not_tested_on(tmp_path):
    unknown = ImageTensor(TEST.images, TEST.labels * 0 - 1)
    tables = {"train": make_table(TRAIN), "test": make_table(unknown)}
    folder = write_parquet(tmp_path, tables)
    with pytest.raises(DataError, match=r"has no labelled split to test on.*it has train, test"):
        load(folder)
    write_parquet(tmp_path, {"validation": make_table(TEST)})
    assert torch.equal(load(folder).test.images, TEST.images)


def test_a_damaged_image_is_named_by_row_and_path(tmp_path):
    rows = make_table(TRAIN).to_pylist()
    rows[3]["img"]["bytes"] = rows[3]["img"]["bytes"][:80]
    rows[4]["img"]["bytes"] = None
    table = pyarrow.Table.from_pylist(rows)
    folder = write_parquet(tmp_path, {"train": table, "test": make_table(TEST)})
    with pytest.raises(DataError, match="2 of 18 images") as caught:
        load(folder)
    assert "train, row 3 (3.png) cannot be read as an image" in str(caught.value)
    assert "train, row 4 (4.png) is empty (0 bytes)" in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", "b"], "label": [0, 1]}, "no column of images .* among text, label"),
        ({"image": [b"a", b"b"], "name": ["a", "b"]}, "no column of labels .* among image, name"),
        ({"image": [b"a", b"b"], "label": [0, None]}, "1 images have no label"),
        ({"image": [b"a", b"b"], "x": [0, 1], "y": [0, 1]}, "no column of labels"),
    ],
)
def test_tables_without_images_or_labels_are_refused(tmp_path, columns, message):
    tables = {"train": pyarrow.table(columns), "test": make_table(TEST)}
    with pytest.raises(DataError, match=message):
        load(write_parquet(tmp_path, tables))


def test_a_damaged_parquet_file_is_named(tmp_path):
    folder = write_parquet(tmp_path, {"train": make_table(TRAIN), "test": make_table(TEST)})
    (folder / "train.parquet").write_bytes(b"PAR1 and nothing")
    with pytest.raises(DataError, match=r"train\.parquet cannot be read as parquet"):
        load(folder)


def test_a_label_that_no_class_has_is_refused(tmp_path):
    tables = {"train": make_table(TRAIN, names=["ant", "bee"]), "test": make_table(TEST)}
    with pytest.raises(DataError, match="the label of training image 2 is 2; the 2 classes"):
        load(write_parquet(tmp_path, tables))


def test_the_real_parquet_sample_is_read(real_samples):
    data = load(real_samples / "cifar100", train_images=200, test_images=100)
    assert data.train.images.shape == (200, 3, 32, 32)
    assert data.classes[:2] == ("apple", "aquarium_fish")


@pytest.mark.parametrize("shown", [True, False])
def test_bars_of_the_datasets_library_are_hidden_for_a_while_without_a_terminal(shown):
    datasets = pytest.importorskip("datasets")
    (datasets.enable_progress_bars if shown else datasets.disable_progress_bars)()
    try:
        with parquet.hide_bars():
            assert datasets.are_progress_bars_disabled()
        assert datasets.are_progress_bars_disabled() != shown
    finally:
        datasets.enable_progress_bars()
