"""TrAct with FSDP2 (``fully_shard``) on several ranks; the same lines work with DDP.

torchrun --nproc-per-node 2 examples/fsdp2_training.py --steps 50
"""

import argparse
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from trainact import apply_tract

CLASSES = 10


def make_batches(steps: int, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Return coloured noise, one colour for each class; use a DistributedSampler here."""
    colours = torch.randn(CLASSES, 3, 1, 1, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(CLASSES, (steps, size))
    return [(torch.randn(size, 3, 32, 32) + colours[batch], batch) for batch in labels]


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train one rank, and return its losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args(argv).steps

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", dist.get_node_local_rank())
        torch.cuda.set_device(device)
    torch.manual_seed(0)  # the same weights on every rank
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    ).to(device)
    apply_tract(model, sync=True)  # sync: the second moment of the rows of all ranks
    fully_shard(model)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + dist.get_rank())  # other images on every rank
    losses = []
    for images, labels in make_batches(steps):
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        print("a checkpoint has the plain model's keys:", ", ".join(whole))
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
