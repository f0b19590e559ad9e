"""Mixup and CutMix: a group of images is mixed with itself in reverse order, with one draw.

A group is the whole batch, or ``data.mixing_batch`` images of it. In DeiT it is the share of a GPU.

Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization, 2018.
Yun et al.: CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features,
2019.

The formulas are those of timm's ``Mixup`` in mode "batch". The draws depend only on the seed, the
epoch and the step, and a rank holds both images of each pair (`share_groups`).
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainact.lab.randomness import mix
from trainact.lab.recipes.recipe import DataFields

__all__ = ["Mixture", "draw_mixture", "mix_images", "mix_labels", "share_groups"]


class Mixture(NamedTuple):
    """How a batch is mixed."""

    weight: float  # of the image itself; that of its partner is 1 - weight
    box: tuple[int, int, int, int] | None = None  # CutMix: top, bottom, left, right of the partner


def draw_mixture(fields: DataFields, height: int, width: int, *place: int | str) -> Mixture:
    """Draw the mixture of a batch of images [N, C, height, width] at a ``place`` in the run.

    ``fields.mixup`` and ``fields.cutmix`` are the parameters of the two Beta distributions. If both
    are positive, each is chosen with probability 1/2. A box of CutMix is clipped at the border, and
    the weight is computed from the clipped box.
    """
    generator = np.random.default_rng(mix(*place))
    cut = fields.cutmix > 0 and (not fields.mixup or generator.random() < 0.5)
    spread = fields.cutmix if cut else fields.mixup
    weight = float(generator.beta(spread, spread)) if spread else 1.0
    if not cut:
        return Mixture(weight)
    side = np.sqrt(1 - weight)
    tall, broad = int(height * side), int(width * side)
    y, x = int(generator.integers(height)), int(generator.integers(width))
    top, bottom = max(y - tall // 2, 0), min(y + (tall + 1) // 2, height)
    left, right = max(x - broad // 2, 0), min(x + (broad + 1) // 2, width)
    area = (bottom - top) * (right - left)
    return Mixture(1 - area / (height * width), (top, bottom, left, right))


def mix_images(images: Tensor, mixture: Mixture) -> Tensor:
    """Return images [N, C, H, W]; image i is mixed with image N - 1 - i."""
    if mixture.box is None:
        return images * mixture.weight + images.flip(0) * (1 - mixture.weight)
    top, bottom, left, right = mixture.box
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images.flip(0)[:, :, top:bottom, left:right]
    return mixed


def mix_labels(labels: Tensor, num_classes: int, mixture: Mixture) -> Tensor:
    """Return soft labels, float32 [N, classes], of mixed images with labels [N]."""
    own = F.one_hot(labels, num_classes).float()
    return own * mixture.weight + own.flip(0) * (1 - mixture.weight)


def share_groups(
    count: int, rank: int, ranks: int, group_size: int = 0
) -> list[tuple[int, Tensor]]:
    """Return a rank's images in a batch of ``count``: the number of each group and indices [M].

    Groups have at most ``group_size`` images, and 0 makes the batch one group. Group g of G takes
    every G-th image from g on, so that the copies of repeated augmentation are in different groups.
    In a group of n, image i and its partner n - 1 - i go to the same rank, at opposite ends of its
    share, so mixing each share equals mixing the group.

    >>> [[indices.tolist() for _, indices in share_groups(7, rank, 2)] for rank in (0, 1)]
    [[[0, 1, 5, 6]], [[2, 3, 4]]]
    >>> [(number, indices.tolist()) for number, indices in share_groups(6, 0, 1, group_size=3)]
    [(0, [0, 2, 4]), (1, [1, 3, 5])]
    """
    groups = -(-count // group_size) if group_size else 1
    members = [torch.arange(number, count, groups) for number in range(groups)]
    halves = [(len(own) + 1) // 2 for own in members]
    mine = torch.arange(sum(halves)).tensor_split(ranks)[rank]  # pairs, counted over all groups
    shares, start = [], 0
    for number, (own, half) in enumerate(zip(members, halves, strict=True)):
        first = mine[(mine >= start) & (mine < start + half)] - start
        last = (len(own) - 1 - first).flip(0)
        if len(first):
            shares.append((number, own[torch.cat([first, last[last >= half]])]))
        start += half
    return shares
