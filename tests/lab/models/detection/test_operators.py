"""Non-maximum suppression and RoIAlign without compiled operators, against slow twins."""

import contextlib
import importlib
import random

import pytest
import torch

from trainact.errors import TrActValueError
from trainact.lab.models.detection import operators
from trainact.lab.models.detection.operators import nms, roi_align, use_plain_operators
from trainact.lab.torchvision_import import import_torchvision


def draw_boxes(count, generator, size=20):
    """Return boxes on whole pixels, so that overlaps and ties are common."""
    corner = torch.randint(0, size, (count, 2), generator=generator)
    extent = torch.randint(1, size // 2, (count, 2), generator=generator)
    return torch.cat([corner, corner + extent], 1).float()


def suppress_slowly(boxes, scores, threshold):
    """Return what stays, with Python's own numbers and no tensor."""
    rows, left, kept = boxes.tolist(), list(range(len(boxes))), []
    left.sort(key=lambda i: -scores[i])
    while left:
        best = left.pop(0)
        kept.append(best)
        left = [i for i in left if not overlap_slowly(rows[best], rows[i]) > threshold]
    return kept


def overlap_slowly(a, b):
    wide = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    high = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - wide * high
    return wide * high / union if union else 0.0


# suppression


def test_known_boxes_are_suppressed_as_by_hand():
    """B overlaps A by 0.9 and goes; C overlaps B by 90/110, but A by only 80/120 and is better than
    nothing that stayed at 0.7; D is alone."""
    boxes = torch.tensor([
        [0, 0, 10, 10],  # A
        [1, 0, 11, 10],  # B: A ∩ B = 90, A ∪ B = 110
        [2, 0, 12, 10],  # C: A ∩ C = 80, A ∪ C = 120
        [50, 50, 60, 60],  # D
    ]).float()  # fmt: skip
    scores = torch.tensor([0.9, 0.8, 0.7, 0.95])
    assert nms(boxes, scores, 0.7).tolist() == [3, 0, 2]
    assert nms(boxes, scores, 0.6).tolist() == [3, 0]
    assert nms(boxes, scores, 0.9).tolist() == [3, 0, 1, 2]


def test_an_overlap_of_exactly_the_threshold_stays():
    boxes = torch.tensor([[0, 0, 4, 4], [0, 0, 4, 2]]).float()
    assert nms(boxes, torch.tensor([1.0, 0.5]), 0.5).tolist() == [0, 1]
    assert nms(boxes, torch.tensor([1.0, 0.5]), 0.499).tolist() == [0]


def test_of_equal_scores_the_first_is_better():
    boxes = torch.tensor([[0, 0, 4, 4]] * 3).float()
    assert nms(boxes, torch.ones(3), 0.5).tolist() == [0]


def test_empty_boxes_overlap_nothing():
    boxes = torch.tensor([[3, 3, 3, 3], [3, 3, 3, 3], [0, 0, 9, 9]]).float()
    assert nms(boxes, torch.tensor([0.5, 0.4, 0.9]), 0.0).tolist() == [2, 0, 1]


def test_no_boxes_leave_no_boxes():
    kept = nms(torch.empty(0, 4), torch.empty(0), 0.5)
    assert kept.shape == (0,)
    assert kept.dtype == torch.int64


@pytest.mark.parametrize("seed", range(20))
def test_suppression_agrees_with_its_slow_twin(seed):
    generator = torch.Generator().manual_seed(seed)
    count = random.Random(seed).randrange(1, 80)
    boxes = draw_boxes(count, generator)
    scores = torch.randint(0, 40, (count,), generator=generator) / 40
    for threshold in (0.0, 0.3, 0.7):
        kept = nms(boxes, scores, threshold)
        assert kept.tolist() == suppress_slowly(boxes, scores.tolist(), threshold)


def test_what_stays_does_not_overlap_and_what_goes_does():
    generator = torch.Generator().manual_seed(0)
    boxes, scores = draw_boxes(200, generator), torch.rand(200, generator=generator)
    kept, box_iou = nms(boxes, scores, 0.4), import_torchvision().ops.box_iou
    among = box_iou(boxes[kept], boxes[kept])
    assert (among - torch.eye(len(kept))).max() <= 0.4
    gone = sorted(set(range(200)) - set(kept.tolist()))
    better = scores[kept][:, None] >= scores[gone][None]
    assert ((box_iou(boxes[kept], boxes[gone]) > 0.4) & better).any(0).all()


def test_torchvision_suppresses_class_by_class_with_it():
    """Both ways that torchvision has, the one for few boxes and the one for many."""
    import_torchvision()
    from torchvision.ops.boxes import batched_nms

    for count in (50, 1200):
        generator = torch.Generator().manual_seed(count)
        boxes = draw_boxes(count, generator, 60)
        scores = torch.rand(count, generator=generator)
        labels = torch.randint(0, 3, (count,), generator=generator)
        expected = {
            members[i]
            for label in range(3)
            for members in [torch.nonzero(labels == label).flatten().tolist()]
            for i in suppress_slowly(boxes[members], scores[members].tolist(), 0.5)
        }
        with use_plain_operators():
            kept = batched_nms(boxes, scores, labels, 0.5).tolist()
        assert set(kept) == expected
        assert scores[kept].tolist() == sorted(scores[kept].tolist(), reverse=True)


# where they are used


@pytest.fixture
def modules():
    """torchvision's modules whose functions are replaced."""
    import_torchvision()
    return [importlib.import_module(f"torchvision.ops.{name}") for name in ("boxes", "poolers")]


@pytest.mark.parametrize("compiled", [True, False])
def test_operators_are_replaced_only_if_missing_and_only_for_a_while(
    modules, monkeypatch, compiled
):
    boxes, poolers = modules
    said = []
    monkeypatch.setattr(operators, "report_mismatch", lambda: said.append("mismatch"))

    def answer(*arguments):
        if not compiled:
            raise RuntimeError("Couldn't load custom C++ ops.")
        return torch.tensor([0])

    monkeypatch.setattr(boxes, "nms", answer)
    monkeypatch.setattr(poolers, "roi_align", answer)
    found = operators.has_compiled_operators.__wrapped__()
    assert found == compiled
    monkeypatch.setattr(operators, "has_compiled_operators", lambda: found)
    expected = (answer, answer) if compiled else (nms, roi_align)
    with contextlib.suppress(KeyError), use_plain_operators():
        during = (boxes.nms, poolers.roi_align)
        raise KeyError
    assert during == expected
    assert said == ([] if compiled else ["mismatch"])
    assert boxes.nms is poolers.roi_align is answer


# RoIAlign


def find_python_path():
    """Return torchvision's own RoIAlign in Python, as it is before it is compiled."""
    import_torchvision()
    return importlib.import_module("torchvision.ops.roi_align")._roi_align.__wrapped__


def draw_regions(count, images, height, width, generator):
    """Return regions [K, 5] inside the images, of 16 pixels a place, in no order of images."""
    places = torch.rand(count, 2, generator=generator, dtype=torch.float64) * 0.6
    extent = 0.1 + torch.rand(count, 2, generator=generator, dtype=torch.float64) * 0.3
    boxes = torch.cat([places, places + extent], 1)
    boxes = boxes * torch.tensor([width, height] * 2, dtype=torch.float64) * 16
    of = torch.randint(0, images, (count, 1), generator=generator)
    return torch.cat([of.double(), boxes], 1)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_regions_and_their_gradient_agree_with_torchvision_in_python(aligned, samples):
    generator = torch.Generator().manual_seed(samples)
    features = torch.randn(3, 5, 9, 13, generator=generator, dtype=torch.float64)
    regions = draw_regions(17, 3, 9, 13, generator)
    direction = torch.randn(17, 5, 4, 7, generator=generator, dtype=torch.float64)
    results = []
    for function in (roi_align, find_python_path()):
        mine = features.clone().requires_grad_()
        size = ((4, 7),) if function is roi_align else (4, 7)
        if function is roi_align:
            out = function(mine, regions, size[0], 1 / 16, samples, aligned)
        else:
            out = function(mine, regions, 1 / 16, *size, samples, aligned)
        (out * direction).sum().backward()
        results.append((out.detach(), mine.grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_regions_of_a_constant_map_are_constant():
    features = torch.full((1, 2, 6, 6), 3.5)
    out = roi_align(features, [torch.tensor([[8.0, 8.0, 80.0, 60.0]])], 7, 1 / 16, 2)
    assert out.shape == (1, 2, 7, 7)
    assert torch.allclose(out, torch.full_like(out, 3.5))


def test_one_cell_of_one_sample_is_the_middle_of_a_ramp():
    """Over f(x) = x, a region from 2 to 6 has its middle at 4."""
    features = torch.arange(10.0).expand(1, 1, 10, 10)
    out = roi_align(features, [torch.tensor([[2.0, 0.0, 6.0, 3.0]])], 1, 1.0, 1)
    assert out.item() == 4


def test_lists_and_numbered_regions_say_the_same():
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(2, 3, 6, 6, generator=generator, dtype=torch.float64)
    regions = draw_regions(9, 2, 6, 6, generator)
    by_image = [regions[regions[:, 0] == i, 1:] for i in range(2)]
    numbered = torch.cat([regions[regions[:, 0] == i] for i in range(2)])
    one = roi_align(features, by_image, 3, 1 / 16, 2)
    assert torch.equal(one, roi_align(features, numbered, 3, 1 / 16, 2))


def test_the_gradient_is_that_of_differences():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(1, 2, 4, 5, generator=generator, dtype=torch.float64)
    regions = draw_regions(3, 1, 4, 5, generator)
    assert torch.autograd.gradcheck(
        lambda f: roi_align(f, regions, 2, 1 / 16, 2), features.requires_grad_()
    )


def test_no_region_gives_no_value():
    out = roi_align(torch.ones(1, 4, 5, 5), [torch.empty(0, 4)], 7, 1 / 16, 2)
    assert out.shape == (0, 4, 7, 7)


def test_a_number_of_samples_that_depends_on_the_region_is_refused():
    with pytest.raises(TrActValueError, match="sampling_ratio must be positive"):
        roi_align(torch.ones(1, 1, 2, 2), [torch.zeros(1, 4)], 2)
