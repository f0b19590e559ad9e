"""TrAct with timm: ``create_model``, then the parts of timm's train.py.

pip install 'trainact[lab]'
python examples/timm_training.py --model resnet18 --epochs 4
"""

import argparse
from collections.abc import Sequence

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler
from torch import Tensor

from trainact import apply_tract

CLASSES = 10


def make_batches(steps: int, pixels: int, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Return coloured noise, one colour for each class; use timm's ``create_loader`` here."""
    colours = torch.randn(CLASSES, 3, 1, 1)
    labels = torch.randint(CLASSES, (steps, size))
    return [(torch.randn(size, 3, pixels, pixels) + colours[batch], batch) for batch in labels]


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train, and return the mean loss of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50, help="per epoch")
    parser.add_argument("--pixels", type=int, default=64)
    arguments = parser.parse_args(argv)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = timm.create_model(arguments.model, num_classes=CLASSES).to(device)
    print("TrAct trains", apply_tract(model))

    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.01, momentum=0.9, weight_decay=5e-5)
    schedule, epochs = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=arguments.epochs, warmup_epochs=0
    )
    mixup = Mixup(mixup_alpha=0.1, num_classes=CLASSES)
    average, scaler = ModelEmaV3(model, decay=0.99), NativeScaler(device=device.type)
    compute_loss = SoftTargetCrossEntropy()
    batches = make_batches(arguments.steps, arguments.pixels)
    losses = []
    for epoch in range(epochs):
        model.train()
        meter = AverageMeter()
        for images, labels in batches:
            mixed, targets = mixup(images.to(device), labels.to(device))
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = compute_loss(model(mixed), targets)
            optimizer.zero_grad()
            # timm's scaler unscales, clips and steps; it sees TrAct's gradient
            scaler(loss, optimizer, clip_grad=5.0, parameters=model.parameters())
            average.update(model)
            meter.update(loss.item(), len(images))
        schedule.step(epoch + 1)
        losses.append(meter.avg)
        print(f"epoch {epoch + 1}: loss {meter.avg:.3f}")
    return losses


if __name__ == "__main__":
    main()
