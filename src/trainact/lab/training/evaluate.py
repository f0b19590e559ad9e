"""Accuracy from counts of correct images."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor, nn

from trainact.lab.training.batches import Share
from trainact.lab.training.machine import sum_over_ranks

__all__ = ["count_correct", "evaluate"]


@torch.no_grad()
def evaluate(
    network: nn.Module, batches: Iterable[Share], accelerator: Accelerator
) -> dict[str, float]:
    """Return the mean loss, the images seen, and how many were right at the first and in five.

    Buffers of rank 0 (the statistics of batch norm) are used on every rank.
    """
    if accelerator.num_processes > 1:
        for buffer in network.buffers():
            buffer.copy_(broadcast(buffer, from_process=0))
    was_training = network.training
    network.eval()
    exact = torch.float32 if accelerator.device.type == "mps" else torch.float64
    totals = torch.zeros(4, dtype=exact, device=accelerator.device)
    with accelerator.autocast():
        for images, labels in batches:
            logits = network(images).float()
            loss = F.cross_entropy(logits, labels, reduction="sum")
            first, five = count_correct(logits, labels)
            seen = torch.tensor(len(labels), device=accelerator.device)
            totals += torch.stack([loss, first, five, seen])
    network.train(was_training)
    loss_sum, correct, top5, count = sum_over_ranks(accelerator, totals)
    return {
        "test_loss": loss_sum / count,
        "test_correct": int(correct),
        "test_top5": int(top5),
        "test_seen": int(count),
    }


def count_correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many images have their label first, and among the first five.

    >>> logits = torch.tensor([[0.1, 0.9, 0.0, 0.2, 0.3, 0.4]]).expand(2, -1)
    >>> [int(count) for count in count_correct(logits, torch.tensor([1, 2]))]
    [1, 1]
    """
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return best[:, 0].sum(), best.sum()
