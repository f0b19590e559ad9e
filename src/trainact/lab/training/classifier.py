"""Loss and accuracy of a classifier."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor, nn

from trainact.lab.recipes.recipe import OptimizerFields
from trainact.lab.training.batches import Share
from trainact.lab.training.machine import find_exact_dtype, sum_over_ranks

__all__ = ["count_correct", "evaluate_classifier", "sum_losses"]


def sum_losses(logits: Tensor, labels: Tensor, fields: OptimizerFields) -> Tensor:
    """Return the training loss, summed over images.

    Args:
        logits: [N, classes].
        labels: int64 [N], or for mixed images the share of each class, [N, classes]. The binary
            loss replaces every share above 0 by 1, as DeiT-III does.
        fields: the loss and its label smoothing.
    """
    if fields.loss == "binary":
        if labels.ndim == 1:
            labels = F.one_hot(labels, logits.shape[1])
        present = (labels > 0).float()
        return F.binary_cross_entropy_with_logits(logits, present, reduction="none").mean(1).sum()
    smoothing = fields.label_smoothing
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)


@torch.no_grad()
def evaluate_classifier(
    network: nn.Module, batches: Iterable[Share], accelerator: Accelerator
) -> dict[str, float]:
    """Return the mean test loss and how many images are seen, correct, and correct in the top 5.

    Every rank first receives the buffers of rank 0, such as the statistics of batch norm.
    """
    if accelerator.num_processes > 1:
        for buffer in network.buffers():
            buffer.copy_(broadcast(buffer, from_process=0))
    was_training = network.training
    network.eval()
    device = accelerator.device
    totals = torch.zeros(4, dtype=find_exact_dtype(device), device=device)
    with accelerator.autocast():
        for images, labels in batches:
            logits = network(images).float()
            loss = F.cross_entropy(logits, labels, reduction="sum")
            seen = torch.tensor(len(labels), device=device)
            totals += torch.stack([loss, *count_correct(logits, labels), seen])
    network.train(was_training)
    loss_sum, correct, top5, count = sum_over_ranks(accelerator, totals)
    return {
        "test_loss": loss_sum / count,
        "test_correct": int(correct),
        "test_top5": int(top5),
        "test_seen": int(count),
    }


def count_correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many images have their label in the top 1 and in the top 5.

    >>> logits = torch.tensor([[0.1, 0.9, 0.0, 0.2, 0.3, 0.4]]).expand(2, -1)
    >>> [int(count) for count in count_correct(logits, torch.tensor([1, 2]))]
    [1, 1]
    """
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return best[:, 0].sum(), best.sum()
