"""Tables of images: parquet files, the hub, and numpy archives."""

import io
import pickle
import sys

import numpy as np
import pyarrow
import pytest
import torch

from data_cases import make_images, make_table, to_pixels, write_npz, write_parquet
from trainact.errors import TrActValueError
from trainact.lab.data import DataError, ImageStream, ImageTensor, load_data, parquet
from trainact.lab.recipes.recipe import DataFields

TRAIN, TEST = make_images(12, size=8, classes=3), make_images(6, seed=1, size=8, classes=3)
NAMES = ["ant", "bee", "cat"]


def load(path, **fields):
    return load_data(DataFields(name=str(path), **fields))


# ---- parquet


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


def test_the_real_parquet_sample_is_read(samples):
    data = load(samples / "cifar100", train_images=200, test_images=100)
    assert data.train.images.shape == (200, 3, 32, 32)
    assert data.classes[:2] == ("apple", "aquarium_fish")


# ---- the hub


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


def test_without_the_datasets_library_the_reader_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install datasets"):
        load("hf:owner/insects")


# ---- npz


def test_an_npz_file_is_read(tmp_path):
    data = load(write_npz(tmp_path / "set.npz", TRAIN, TEST))
    assert data.name == "set"
    assert data.classes == ("0", "1", "2")
    assert torch.equal(data.train.images, TRAIN.images)
    assert torch.equal(data.test.labels, TEST.labels)


def write_arrays(tmp_path, **changes):
    arrays = {
        "x_train": to_pixels(TRAIN.images),
        "y_train": TRAIN.labels.numpy(),
        "x_test": to_pixels(TEST.images),
        "y_test": TEST.labels.numpy(),
        **changes,
    }
    file = tmp_path / "set.npz"
    np.savez(file, **{key: value for key, value in arrays.items() if value is not None})
    return file


def test_other_names_and_shapes_are_read(tmp_path):
    grey = TRAIN.images[:, 0].numpy()
    data = load(
        write_arrays(
            tmp_path,
            x_train=grey,
            y_train=TRAIN.labels.numpy()[:, None].astype("uint8"),
            x_test=TEST.images.numpy()[:, :1],
        )
    )
    assert torch.equal(data.train.images, TRAIN.images[:, :1])
    assert torch.equal(data.test.images, TEST.images[:, :1])
    assert torch.equal(data.train.labels, TRAIN.labels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((12, 8, 8, 3))}, "x_train is float64; images must be uint8"),
        ({"x_train": np.zeros((12, 8, 8, 4), "uint8")}, r"shape \[12, 8, 8, 4\]; accepted are"),
        ({"x_train": np.zeros((12, 8), "uint8")}, r"x_train has the shape \[12, 8\]"),
        ({"y_train": np.zeros((12, 4), "int64")}, r"y_train is int64 \[12, 4\]; labels must be"),
        ({"y_train": np.zeros(12)}, "y_train is float64"),
        ({"y_test": np.zeros(5, "int64")}, "has 6 images with 5 labels"),
        ({"y_test": np.array([0, 1, 2, 3, 1, 2])}, "the label of test image 3 is 3"),
        ({"y_train": -np.ones(12, "int64")}, "has 0 class"),
        ({"y_train": np.zeros(12, "int64")}, "has 1 class"),
        (
            {"x_test": None},
            "lacks test_images and test_labels or x_test and y_test; it holds x_train, y_train, y_",
        ),
        ({"x_test": np.array([{}, {}], dtype=object)}, "cannot be read .*no pickled objects"),
    ],
)
def test_arrays_that_are_not_images_and_labels_are_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        load(write_arrays(tmp_path, **changes))


def test_a_damaged_npz_file_is_refused(tmp_path):
    file = write_arrays(tmp_path)
    for content in (b"", b"no archive", file.read_bytes()[:3000]):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"set\.npz cannot be read"):
            load(file)
    buffer = io.BytesIO()
    np.save(buffer, TRAIN.labels.numpy())
    file.write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match=r"set\.npz cannot be read"):
        load(file)


# ---- names


def test_names_of_nothing_are_answered_with_what_is_accepted(tmp_path):
    with pytest.raises(
        TrActValueError, match=r"'cifar'; did you mean 'cifar10' or 'cifar100'\? Acc"
    ):
        load("cifar")
    with pytest.raises(TrActValueError, match="'CIFAR-10'; did you mean 'cifar10'"):
        load("CIFAR-10")
    with pytest.raises(TrActValueError, match=r"unknown data set 'qwertz'\. Accepted are photos, "):
        load("qwertz")
    with pytest.raises(TrActValueError, match="unknown data set ''"):
        load("")
    (tmp_path / "a.zip").write_text("x")
    with pytest.raises(TrActValueError, match=r"a\.zip is a file of unknown type\. Accepted are"):
        load(tmp_path / "a.zip")
    for path in (tmp_path / "nowhere", "./nowhere", "nowhere.npz"):
        with pytest.raises(DataError, match=r"there is no file or folder .*nowhere"):
            load(path)


def test_a_folder_for_another_set_than_cifar_is_refused(tmp_path):
    with pytest.raises(TrActValueError, match=r"give its path as data\.name"):
        load("photos", folder=str(tmp_path))
