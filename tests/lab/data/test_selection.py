"""Subsets and held-out images."""

import pytest
import torch

from data_cases import make_images, write_npz
from trainact.lab.data import DataError, ImageTensor, load_data
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


def test_nothing_held_out_is_nothing_to_evaluate_on(load):
    with pytest.raises(DataError, match="set has no test images"):
        load(evaluate_on="held-out")
