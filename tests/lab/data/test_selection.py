"""Which images a run uses, how they are stored, and their fingerprint."""

import numpy as np
import pytest
import torch

from data_cases import make_images, to_pixels, write_folder, write_npz
from trainact.lab.data import DataError, ImageStream, ImageTensor, load_data, storage
from trainact.lab.data.selection import order_by_class
from trainact.lab.recipes.recipe import DataFields

TRAIN, TEST = make_images(200, size=8), make_images(60, seed=1, size=8)


@pytest.fixture
def load(tmp_path):
    file = write_npz(tmp_path / "set.npz", TRAIN, TEST)
    return lambda **fields: load_data(DataFields(name=str(file), **fields))


def identify(images):
    """The images as a set, each by its bytes."""
    return {image.numpy().tobytes() for image in images.images}


# ---- selection


def test_fewer_images_are_a_balanced_part_of_more(load):
    few, more, all_of_them = (load(train_images=n, test_images=n // 4) for n in (40, 90, 200))
    assert few.train.labels.bincount().tolist() == [4] * 10
    assert more.train.labels.bincount().tolist() == [9] * 10
    assert few.test.labels.bincount().tolist() == [1] * 10
    assert identify(few.train) < identify(more.train) < identify(all_of_them.train)
    assert identify(few.test) < identify(more.test)
    assert torch.equal(all_of_them.train.images, TRAIN.images)


def test_the_selection_is_shuffled_and_does_not_depend_on_the_seed_of_torch(load):
    first = load(train_images=40)
    torch.manual_seed(7)
    again = load(train_images=40)
    assert first.fingerprint == again.fingerprint
    assert identify(first.train) != identify(ImageTensor(TRAIN.images[:40], TRAIN.labels[:40]))


def test_numbers_that_classes_do_not_divide_are_spread_evenly(load):
    counts = load(train_images=47).train.labels.bincount()
    assert counts.sum() == 47
    assert set(counts.tolist()) == {4, 5}


def test_unequal_classes_keep_their_proportions():
    labels = torch.tensor([0] * 80 + [1] * 16 + [2] * 4)
    order = order_by_class(labels)
    assert order.sort().values.tolist() == list(range(100))
    assert labels[order[:50]].bincount().tolist() == [40, 8, 2]
    assert labels[order[:25]].bincount().tolist() == [20, 4, 1]


def test_held_out_images_are_never_trained_on_whatever_their_number(load):
    tuned = load(held_out=30, evaluate_on="held-out")
    assert tuned.test.labels.bincount().tolist() == [3] * 10
    assert len(tuned.train) == 170
    assert identify(tuned.train) | identify(tuned.test) == identify(TRAIN)
    for number in (10, 100, 170):
        other = load(held_out=30, evaluate_on="held-out", train_images=number)
        assert len(other.train) == number
        assert identify(other.test) == identify(tuned.test)
        assert not identify(other.train) & identify(tuned.test)
    final = load(held_out=30, train_images=100)
    assert identify(final.test) == identify(TEST)
    assert not identify(final.train) & identify(tuned.test)
    more = load(held_out=60, evaluate_on="held-out", test_images=1000)
    assert identify(tuned.test) < identify(more.test)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train_images": 201}, r"data\.train_images is 201, but set has 200 training images\. "),
        (
            {"train_images": 171, "held_out": 30},
            r"has 170 training images that are not held out \(data\.held_out is 30\)\. Use at",
        ),
        ({"test_images": 61}, r"data\.test_images is 61, but set has 60 test images\. Use at"),
        ({"held_out": 200}, r"data\.held_out is 200, but set has 200 training images\. Hold out"),
    ],
)
def test_more_images_than_there_are_is_refused(load, fields, message):
    with pytest.raises(DataError, match=message):
        load(**fields)


# ---- storage


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


def test_nothing_held_out_is_nothing_to_evaluate_on(load):
    with pytest.raises(DataError, match="set has no test images"):
        load(evaluate_on="held-out")


# ---- fingerprint


def test_the_fingerprint_tells_images_labels_and_order_apart(tmp_path):
    def take(images=TRAIN.images, labels=TRAIN.labels, test=TEST, **fields):
        file = write_npz(tmp_path / "set.npz", ImageTensor(images, labels), test)
        return load_data(DataFields(name=str(file), **fields)).fingerprint

    other_pixel = TRAIN.images.clone()
    other_pixel[100, 1, 2, 3] ^= 1
    swap = torch.arange(200)
    swap[[0, 10]] = swap[[10, 0]]
    for stored in ("memory", "stream"):
        found = [
            take(storage=stored),
            take(other_pixel, storage=stored),
            take(labels=TRAIN.labels.flip(0), storage=stored),
            take(TRAIN.images[swap], storage=stored),
            take(test=TEST.select(torch.arange(59)), storage=stored),
            take(storage=stored, train_images=100),
            take(storage=stored, held_out=60, evaluate_on="held-out"),
        ]
        assert len(set(found)) == len(found)
        assert take(storage=stored) == found[0]
        assert all(len(value) == 64 for value in found)


def test_the_fingerprint_of_files_is_of_names_sizes_and_labels(tmp_path):
    def take(root):
        return load_data(DataFields(name=str(root), storage="stream")).fingerprint

    counts = {"train/a": 2, "train/b": 2, "test/a": 1}
    first = write_folder(tmp_path / "first", counts)
    before = take(first)
    assert take(write_folder(tmp_path / "elsewhere", counts)) == before
    (first / "train/a/000.png").rename(first / "train/a/009.png")
    renamed = take(first)
    with (first / "train/a/009.png").open("ab") as file:
        file.write(b"more")
    assert len({before, renamed, take(first)}) == 3
