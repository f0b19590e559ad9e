"""Images in numpy archives."""

import io

import numpy as np
import pytest
import torch

from data_cases import make_images, to_pixels, write_npz
from trainact.lab.data import DataError, load_data
from trainact.lab.recipes.recipe import DataFields

TRAIN, TEST = make_images(12, size=8, classes=3), make_images(6, seed=1, size=8, classes=3)


def load(path, **fields):
    return load_data(DataFields(name=str(path), **fields))


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
