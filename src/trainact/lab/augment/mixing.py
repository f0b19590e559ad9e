"""Mixup and CutMix: a batch is mixed with itself in reverse order, one mixture a batch.

Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization, 2018.
Yun et al.: CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features,
2019.

The formulas are those of timm's ``Mixup`` in its mode "batch". The draws depend on the seed, the
epoch and the step alone, and a rank holds both images of each pair: `share_pairs`.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainact.lab.randomness import mix
from trainact.lab.recipes.recipe import DataFields

__all__ = ["Mixture", "draw_mixture", "mix_images", "mix_labels", "share_pairs"]


class Mixture(NamedTuple):
    """How a batch is mixed.

    Attributes:
        weight: of an image itself, in its own mixture; the rest is its partner's.
        box: (top, bottom, left, right) of what the partner gives, for CutMix; None for mixup.
    """

    weight: float
    box: tuple[int, int, int, int] | None = None


def draw_mixture(fields: DataFields, height: int, width: int, *place: int | str) -> Mixture:
    """Draw the mixture of a batch of images [N, C, height, width].

    With both ``fields.mixup`` and ``fields.cutmix`` a coin decides between them. A box of CutMix
    may reach over the border; the weight is that of what lies inside.

    Args:
        fields: the parameters of the two Beta distributions; 0 for none.
        height: of the images.
        width: of the images.
        place: what the draws depend on: seed, epoch, step.
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
    """Return images [N, C, H, W], each mixed with the one at its place from the end."""
    if mixture.box is None:
        return images * mixture.weight + images.flip(0) * (1 - mixture.weight)
    top, bottom, left, right = mixture.box
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images.flip(0)[:, :, top:bottom, left:right]
    return mixed


def mix_labels(labels: Tensor, num_classes: int, mixture: Mixture) -> Tensor:
    """Return the shares of the classes, float32 [N, classes], of mixed images with labels [N]."""
    own = F.one_hot(labels, num_classes).float()
    return own * mixture.weight + own.flip(0) * (1 - mixture.weight)


def share_pairs(count: int, rank: int, ranks: int) -> Tensor:
    """Return the places [M] of a rank's images in a batch of ``count``.

    Image i and its partner ``count - 1 - i`` go to one rank, at opposite ends of its share: mixing
    the share is mixing the batch.

    >>> [share_pairs(7, rank, 2).tolist() for rank in (0, 1)]
    [[0, 1, 5, 6], [2, 3, 4]]
    """
    first = torch.arange((count + 1) // 2).tensor_split(ranks)[rank]
    last = (count - 1 - first).flip(0)
    return torch.cat([first, last[last >= (count + 1) // 2]])
