"""Whatever holds images becomes the arguments of a forward, or a clear error."""

from collections import UserDict

import numpy as np
import pytest
import torch

from trainact import TrActError
from trainact.image_batches import list_batches, move_call, take_images

IMAGES, LABELS = torch.randn(4, 3, 8, 8), torch.arange(4)
OTHERS = torch.randn(4, 3, 8, 8)


@pytest.mark.parametrize(
    ("images", "count"),
    [
        (IMAGES, 1),
        ([IMAGES, OTHERS], 2),
        ((IMAGES, OTHERS), 1),
        ((IMAGES, LABELS), 1),
        ([IMAGES, LABELS], 1),
        ((IMAGES,), 1),
        (IMAGES.split(2), 2),
        (((IMAGES, LABELS), (OTHERS, LABELS)), 2),
        (next(iter(torch.utils.data.DataLoader([(IMAGES[0], 1)] * 4, 2))), 1),
        (iter([IMAGES]), 1),
        ([(IMAGES, LABELS), [IMAGES, LABELS]], 2),
        (((IMAGES,) for _ in range(3)), 3),
        (torch.utils.data.DataLoader(torch.utils.data.TensorDataset(IMAGES, LABELS), 2), 2),
    ],
    ids=["tensor", "list", "images-and-targets", "images-and-labels", "loaders-batch", "one-tuple", "split", "tuple-of-pairs", "batch-of-a-loader", "iterator", "pairs", "generator", "loader"],
)  # fmt: skip
def test_images_are_passed_alone(images, count):
    calls = list(list_batches(images))
    assert len(calls) == count
    for args, kwargs in calls:
        assert [arg.shape[1:] for arg in args] == [(3, 8, 8)]
        assert not kwargs


def test_the_first_of_a_pair_holds_the_images():
    (((images,), _),) = list_batches((IMAGES, OTHERS))
    assert images is IMAGES


def test_batches_are_taken_until_they_hold_so_many_images():
    batches = [(part, LABELS) for part in torch.randn(10, 3, 8, 8).split(3)]
    for most, count in ((1, 1), (3, 1), (4, 2), (6, 2), (10, 4), (99, 4), (None, 4)):
        read = iter(batches)
        assert len(list(take_images(list_batches(read), most))) == count
        assert len(list(read)) == 4 - count


def test_images_are_counted_in_every_kind_of_batch():
    for batch in (
        {"pixel_values": IMAGES, "labels": LABELS},
        {"flag": True, "pixel_values": IMAGES},
        (list(IMAGES), [{}] * 4),
        IMAGES,
    ):
        assert len(list(take_images(list_batches([batch] * 9), 8))) == 2
    for batch in (IMAGES[:0], {"flag": True}):
        assert len(list(take_images(list_batches([batch] * 9), 8))) == 8


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_mapping_is_passed_by_keyword(kind):
    batch = kind({"pixel_values": IMAGES, "labels": LABELS})
    for images in (batch, [batch], [(batch, "more")]):
        ((args, kwargs),) = list_batches(images)
        assert args == ()
        assert type(kwargs) is dict
        assert kwargs["pixel_values"] is IMAGES
        assert kwargs["labels"] is LABELS


def test_a_detectors_list_of_images_is_one_argument():
    ((args, kwargs),) = list_batches([([IMAGES[0], IMAGES[1]], [{"boxes": None}] * 2)])
    assert [len(arg) for arg in args] == [2]
    assert not kwargs


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "images holds no batch"),
        (iter(()), "a generator that was read before yields none"),
        (None, "takes one batch or an iterable of batches, and a batch is a tensor.*got NoneType"),
        (3, "got int"),
        ("path/to/images", "batch 0 is a str"),
        ([np.zeros((2, 3))], "batch 0 is a ndarray; a batch is .* call torch.from_numpy first"),
        ([(np.zeros((2, 3)), 1)], "batch 0 is a tuple of ndarray"),
        ([()], "batch 0 is a tuple; a batch is"),
        ([([], 1)], "batch 0 is a tuple of list"),
        ((), "images holds no batch"),
        ([IMAGES, LABELS, "path"], r"batch 1 is a tensor of shape \(4,\); images have at least 2.*labels"),
        ((LABELS, LABELS), r"the batch is a tensor of shape \(4,\)"),
        ([IMAGES, LABELS.to_sparse()], r"batch 1 is a tensor of shape \(4,\)"),
        (torch.zeros(()), r"the batch is a tensor of shape \(\)"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(images, message):
    with pytest.raises(TrActError, match=message):
        list(list_batches(images))


def test_floating_point_tensors_get_the_dtype():
    call = ((IMAGES, [IMAGES]), {"ids": LABELS, "flag": True, "mask": IMAGES})
    (images, (listed,)), keywords = move_call(call, torch.device("cpu"), torch.bfloat16)
    assert images.dtype == listed.dtype == keywords["mask"].dtype == torch.bfloat16
    assert keywords["ids"].dtype == torch.int64
    assert keywords["flag"] is True
