"""Images in memory and as streams."""

import numpy as np
import pytest
import torch

from data_cases import make_images, to_pixels, write_folder, write_npz
from trainact.lab.data import DataError, ImageStream, ImageTensor, load_data, storage
from trainact.lab.recipes.recipe import DataFields

TRAIN, TEST = make_images(200, size=8), make_images(60, seed=1, size=8)


@pytest.fixture
def load(tmp_path):
    file = write_npz(tmp_path / "set.npz", TRAIN, TEST)
    return lambda **fields: load_data(DataFields(name=str(file), **fields))


def test_a_set_in_memory_can_be_read_one_by_one(load):
    data = load(storage="stream", train_images=20)
    assert isinstance(data.train, ImageStream)
    assert isinstance(data.test, ImageStream)
    held = load(train_images=20)
    pixels = np.stack([np.array(data.train.read(item)) for item in data.train.items])
    assert np.array_equal(pixels, to_pixels(held.train.images))
    assert torch.equal(data.train.labels, held.train.labels)


def test_images_are_streamed_unasked_if_they_are_many_or_cropped_in_many_sizes(
    tmp_path, monkeypatch
):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 2, "test/a": 1})

    def kind(**fields):
        data = load_data(DataFields(name=str(root), **fields))
        assert type(data.train) is type(data.test)
        return type(data.train)

    assert kind() is ImageTensor
    assert kind(crop="resized") is ImageStream
    assert kind(crop="resized", storage="memory") is ImageTensor
    monkeypatch.setattr(storage, "MEMORY_LIMIT", 5 * 3 * 8 * 8)
    assert kind() is ImageTensor
    assert kind(image_size=9) is ImageStream
    assert kind(image_size=9, storage="memory") is ImageTensor
    monkeypatch.setattr(storage, "MEMORY_LIMIT", 5 * 3 * 8 * 8 - 1)
    assert kind() is ImageStream
    assert kind(train_images=3) is ImageTensor


def test_images_in_memory_are_brought_to_the_asked_size(load, tmp_path):
    assert torch.equal(load(image_size=8).train.images, TRAIN.images)
    data = load(image_size=16, train_images=20)
    assert data.train.images.shape == (20, 3, 16, 16)
    assert data.test.images.shape == (60, 3, 16, 16)
    flat = ImageTensor(torch.full((4, 3, 8, 8), 77, dtype=torch.uint8), torch.arange(4) % 2)
    file = write_npz(tmp_path / "flat.npz", flat, flat)
    assert (load_data(DataFields(name=str(file), image_size=5)).train.images == 77).all()


def test_grey_images_stay_grey_at_another_size(tmp_path):
    grey = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8)
    labels = np.array([0, 1])
    file = tmp_path / "grey.npz"
    np.savez(file, x_train=grey, y_train=labels, x_test=grey, y_test=labels)
    data = load_data(DataFields(name=str(file), image_size=4))
    assert data.train.images.shape == (2, 1, 4, 4)
    streamed = load_data(DataFields(name=str(file), storage="stream"))
    assert streamed.train.read(0).mode == "RGB"


def test_training_and_test_images_must_have_one_size(tmp_path):
    file = write_npz(tmp_path / "set.npz", TRAIN, make_images(60, size=9))
    with pytest.raises(
        DataError, match=r"images are \[3, 8, 8\] .* test images \[3, 9, 9\]\. Set data\.image_size"
    ):
        load_data(DataFields(name=str(file)))
    assert load_data(DataFields(name=str(file), image_size=8)).test.images.shape[2:] == (8, 8)
    root = write_folder(tmp_path / "set", {"train/a": 1, "train/b": 1})
    write_folder(root, {"test/a": 1}, size=9)
    with pytest.raises(DataError, match=r"Set data\.image_size"):
        load_data(DataFields(name=str(root)))


def test_slow_decoding_reports_its_progress(load, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "CHUNK", 100)
    monkeypatch.setattr(storage, "REPORT_SECONDS", -1)
    notes = []
    load_data(DataFields(name=str(tmp_path / "set.npz"), image_size=4), notes.append)
    assert notes[:2] == ["decoded 0 of 200 images", "decoded 100 of 200 images"]
