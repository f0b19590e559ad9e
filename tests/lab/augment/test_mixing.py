"""Mixup, CutMix, repeated augmentation and the binary loss, against timm and by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data_cases import make_images
from lab_helpers import make_quick
from trainact.lab.augment.mixing import Mixture, draw_mixture, mix_images, mix_labels, share_groups
from trainact.lab.data.images import ImageData, Standard
from trainact.lab.data.storage import store_images
from trainact.lab.recipes.recipe import DataFields, OptimizerFields
from trainact.lab.torchvision_import import import_torchvision
from trainact.lab.training.batches import Batches, Place
from trainact.lab.training.machine import start_machine
from trainact.lab.training.session import Session, sum_losses

import_torchvision()
import timm  # noqa: E402
from timm.data.mixup import Mixup, mixup_target  # noqa: E402

FIELDS = DataFields(mixup=0.8, cutmix=1.0)
STANDARD = Standard((0.5,) * 3, (0.25,) * 3)
CPU = torch.device("cpu")


def make_batches(rank=0, ranks=1, count=37, **fields):
    images, _ = store_images(make_images(count), make_images(4), DataFields(**fields), print)
    fields = DataFields(crop="none", flip=False, batch_size=8, **fields)
    return Batches(images, fields, STANDARD, 0, Place(rank, ranks, CPU), 10)


def test_mixtures_are_distributed_as_timms():
    if tuple(map(int, timm.__version__.split(".")[:3])) < (1, 0, 29):
        pytest.skip("before 1.0.29, timm's boxes of odd sizes lack a row or a column")
    ours = [draw_mixture(FIELDS, 24, 32, 0, "mixing", 0, step) for step in range(4000)]
    np.random.seed(0)
    theirs = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=4, label_smoothing=0.0)
    cut, smooth = [], []
    images = torch.stack([torch.zeros(1, 24, 32), torch.ones(1, 24, 32)])
    for _ in range(4000):
        mixed, targets = theirs(images.clone(), torch.tensor([0, 1]))
        is_cut = bool(((mixed == 0) | (mixed == 1)).all())
        (cut if is_cut else smooth).append(float(targets[0, 0]))
    mine = [m.weight for m in ours if m.box is None]
    boxes = [m.weight for m in ours if m.box is not None]
    assert abs(len(boxes) - len(cut)) < 4 * math.sqrt(2000)
    for own, other in ((mine, smooth), (boxes, cut)):
        a, b = np.sort(own), np.sort(other)
        grid = np.linspace(0, 1, 101)
        gap = np.searchsorted(a, grid) / len(a) - np.searchsorted(b, grid) / len(b)
        assert abs(gap).max() < 1.95 * math.sqrt(1 / len(a) + 1 / len(b))  # p = 0.001


def test_weights_have_the_moments_of_the_beta_distribution():
    weights = np.array(
        [draw_mixture(DataFields(mixup=0.8), 8, 8, "mixing", i).weight for i in range(4000)]
    )
    assert weights.mean() == pytest.approx(0.5, abs=0.02)
    assert weights.var() == pytest.approx(1 / (4 * (2 * 0.8 + 1)), rel=0.05)


def test_images_and_labels_are_mixed_by_timms_formulas():
    images, labels = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 1, 0])
    mixed = mix_images(images, Mixture(0.7))
    torch.testing.assert_close(mixed, 0.7 * images + 0.3 * images.flip(0))
    torch.testing.assert_close(mix_labels(labels, 4, Mixture(0.7)), mixup_target(labels, 4, 0.7))
    cut = mix_images(images, Mixture(1 - 6 / 64, (1, 3, 2, 5)))
    assert torch.equal(cut[:, :, 1:3, 2:5], images.flip(0)[:, :, 1:3, 2:5])
    outside = torch.ones(8, 8, dtype=torch.bool)
    outside[1:3, 2:5] = False
    assert torch.equal(cut[..., outside], images[..., outside])


def test_smoothed_mixed_targets_give_timms_loss():
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 1, 0])
    ours = F.cross_entropy(logits, mix_labels(labels, 4, Mixture(0.7)), label_smoothing=0.1)
    targets = mixup_target(labels, 4, 0.7, smoothing=0.1)
    theirs = -(targets * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(ours, theirs)


def test_a_box_is_inside_and_its_weight_is_its_area():
    for step in range(300):
        weight, box = draw_mixture(DataFields(cutmix=1.0), 10, 14, "mixing", step)
        top, bottom, left, right = box
        assert 0 <= top <= bottom <= 10
        assert 0 <= left <= right <= 14
        assert weight == pytest.approx(1 - (bottom - top) * (right - left) / 140)


@pytest.mark.parametrize("count", [2, 7, 8, 33])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 2, 3, 8, 50])
def test_partners_are_on_one_rank_and_every_image_once(count, ranks, size):
    shares = [share_groups(count, rank, ranks, size) for rank in range(ranks)]
    everything = torch.cat([indices for share in shares for _, indices in share])
    assert everything.sort().values.tolist() == list(range(count))
    groups = math.ceil(count / size) if size else 1
    for share in shares:
        for number, indices in share:
            own = list(range(number, count, groups))
            assert not size or len(own) <= size
            places = torch.tensor([own.index(i) for i in indices.tolist()])
            assert torch.equal(places.flip(0), len(own) - 1 - places)


def test_a_rank_of_as_many_as_groups_has_the_images_of_upstreams_sampler():
    """It takes every 8th image of the epoch, so the copies of an image are on different GPUs."""
    for rank in range(8):
        ((number, indices),) = share_groups(64, rank, 8, 8)
        assert number == rank
        assert sorted(indices.tolist()) == list(range(rank, 64, 8))


@pytest.mark.parametrize("storage", ["memory", "stream"])
@pytest.mark.parametrize("size", [0, 3])
def test_ranks_together_see_the_mixed_batch_of_one(storage, size):
    fields = {"mixup": 0.8, "cutmix": 1.0, "storage": storage, "image_size": 32,
              "mixing_batch": size}  # fmt: skip
    (one,) = [list(make_batches(**fields).read(1, 0))]
    ranks = [make_batches(rank, 2, **fields) for rank in (0, 1)]
    parts = [list(batches.read(1, 0)) for batches in ranks]
    for step, (whole, count) in enumerate(one):
        back = torch.cat([batches.find_mine(count) for batches in ranks]).argsort()
        for key in ("images", "labels"):
            both = torch.cat([getattr(parts[rank][step][0], key) for rank in (0, 1)])[back]
            alone = getattr(whole, key)[make_batches(**fields).find_mine(count).argsort()]
            torch.testing.assert_close(both, alone)


def test_each_group_has_its_own_draw_and_is_mixed_with_itself():
    mixed, _ = next(make_batches(mixup=0.8, mixing_batch=4).read(0, 0))
    plain, _ = next(make_batches().read(0, 0))
    weights = []
    for number, indices in share_groups(8, 0, 1, 4):
        mixture = draw_mixture(DataFields(mixup=0.8), 32, 32, 0, "mixing", 0, 0, number)
        weights.append(mixture.weight)
        expected = mix_images(plain.images[indices], mixture)
        torch.testing.assert_close(mixed.images[4 * number : 4 * number + 4], expected)
        targets = mix_labels(plain.labels[indices], 10, mixture)
        torch.testing.assert_close(mixed.labels[4 * number : 4 * number + 4], targets)
    assert weights[0] != weights[1]


def test_mixing_can_begin_at_any_batch():
    batches = make_batches(mixup=0.8)
    whole, rest = list(batches.read(2, 0)), list(batches.read(2, 3))
    assert all(torch.equal(a[0].images, b[0].images) for a, b in zip(whole[3:], rest, strict=True))
    assert not torch.equal(whole[0][0].labels.max(), whole[1][0].labels.max())


def test_repeated_augmentation_takes_a_third_of_the_images_three_times():
    batches = make_batches(repeats=3, count=40)
    order = batches.order(0)
    assert batches.steps == 5
    assert len(order) == 40
    counts = order.bincount(minlength=40)
    assert counts.sort(descending=True).values.tolist() == [3] * 13 + [1] + [0] * 26
    assert torch.equal(order[:39].view(13, 3), order[:39:3, None].expand(-1, 3))
    assert not torch.equal(order, batches.order(1))
    assert torch.equal(order[::3], make_batches(count=40).order(0)[:14])


def test_repeats_of_a_stream_are_augmented_each_by_itself():
    batches = make_batches(repeats=3, storage="stream", image_size=16, colour_jitter=0.5)
    share, _ = next(batches.read(0, 0))
    assert share.labels[0] == share.labels[1]
    assert not torch.equal(share.images[0], share.images[1])


def make_session(tmp_path, **changes):
    recipe = make_quick(**changes)
    images = make_images(32)
    data = ImageData("made", images, images, tuple("abcdefghij"), "")
    return Session(recipe, data, start_machine(recipe.run, tmp_path))


def test_the_binary_loss_is_of_all_classes_that_are_present():
    """Targets are 1 wherever a share is more than 0, and the loss is the mean over classes."""
    binary = OptimizerFields(loss="binary")
    logits = torch.randn(2, 3)
    shares = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.0, 1.0]])
    targets = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    chances = torch.sigmoid(logits)
    by_hand = -(targets * chances.log() + (1 - targets) * (1 - chances).log()).mean(1).sum()
    torch.testing.assert_close(sum_losses(logits, shares, binary), by_hand)
    single = sum_losses(logits[1:], torch.tensor([2]), binary)
    torch.testing.assert_close(single, sum_losses(logits[1:], shares[1:], binary))


def test_a_batch_that_cannot_be_shared_in_pairs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="need two images each"):
        make_session(tmp_path, data__mixup=0.8, data__batch_size=8, run__accumulation=5)
