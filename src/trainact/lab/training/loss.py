"""What a classifier is trained to make small."""

import torch.nn.functional as F
from torch import Tensor

from trainact.lab.recipes.recipe import OptimizerFields

__all__ = ["sum_losses"]


def sum_losses(logits: Tensor, labels: Tensor, fields: OptimizerFields) -> Tensor:
    """Return the loss, summed over images.

    Args:
        logits: [N, classes].
        labels: numbers [N], or the share [N, classes] of each class in a mixed image; of these the
            binary loss asks only whether a class is there at all, as DeiT-III does.
        fields: which loss, and its smoothing.
    """
    if fields.loss == "binary":
        if labels.ndim == 1:
            labels = F.one_hot(labels, logits.shape[1])
        present = (labels > 0).float()
        return F.binary_cross_entropy_with_logits(logits, present, reduction="none").mean(1).sum()
    smoothing = fields.label_smoothing
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
