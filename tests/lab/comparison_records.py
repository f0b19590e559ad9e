"""Made-up records of training runs, for tests of everything that is computed from records."""

import hashlib
import math
import random

from trainact.lab.metric import MEAN_AVERAGE_PRECISION

ENVIRONMENT = {
    "date": "2026-05-09T12:00:00+00:00",
    "trainact": "0.3.0",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "clean": True,
    "python": "3.11.7",
    "system": "Linux x86_64",
    "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
    "device": "cpu",
    "processor": "Some Processor @ 2.50GHz",
    "cores": 2,
    "threads": 1,
    "accelerator": None,
}


def make_record(arm, budget, seed, accuracies, *, seconds=3.0, **changes):
    """Return the record of a run with these test accuracies (percent) after its epochs.

    A single accuracy stands for all epochs; ``changes`` replace top-level keys, or with ``__``
    the keys of tables (``model__name``).
    """
    if isinstance(accuracies, int | float):
        accuracies = [accuracies] * budget
    record = {
        "format": 1,
        "status": "complete",
        "kind": "full",
        "arm": arm,
        "budget": budget,
        "seed": seed,
        "recipe": {
            "tract": {
                "enabled": arm.startswith("tract"),
                "lam": float(arm[6:]) if arm.startswith("tract-") else 0.1,
            },
            "optimizer": {
                "lr": 0.08,
                "first_layer_lr": float(arm[3:]) if arm.startswith("lr-") else 1.0,
            },
            "schedule": {"epochs": budget},
            "run": {"seed": seed},
        },
        "recipe_id": hashlib.sha256(f"{arm} {budget} {seed}".encode()).hexdigest()[:10],
        "environment": dict(ENVIRONMENT),
        "data": {
            "name": "photos",
            "fingerprint": "f1e2d3c4b5a6",
            "train_images": 6000,
            "test_images": 2000,
            "classes": 8,
        },
        "model": {
            "name": "lab:resnet18-tract",
            "parameters": 701466,
            "first_layers": ["conv1"],
            "initial_weights": f"weights-{seed}",
        },
        "order": f"order-{budget}-{seed}",
        "epochs": [
            {
                "epoch": epoch,
                "train_loss": 2.0 / epoch,
                "train_correct": 3000,
                "train_seen": 6000,
                "test_loss": 2.1 / epoch,
                "test_correct": accuracy * 20,
                "test_top5": 1990,
                "test_seen": 2000,
                "first_layer_grad_norm": 0.2 / epoch,
                "grad_norm": 2.0,
                "lr": 0.05,
                "train_seconds": seconds if epoch > 1 else 9 * seconds,
                "test_seconds": 0.2,
            }
            for epoch, accuracy in enumerate(accuracies, start=1)
        ],
        "failure": None,
        "seconds": 33.2,
        "sessions": 1,
    }
    for name, value in changes.items():
        table, _, key = name.partition("__")
        if key:
            record[table] = {**record[table], key: value}
        else:
            record[table] = value
    return record


def diverge(record, epochs=1):
    """Return the record of the run if it had diverged after some epochs."""
    return record | {
        "status": "diverged",
        "epochs": record["epochs"][:epochs],
        "failure": f"the loss is NaN in epoch {epochs + 1}, step 12",
    }


def judge_by_precision(record, values):
    """Return the record of the run if its metric were mean average precision."""
    epochs = [row | {"map": value} for row, value in zip(record["epochs"], values, strict=True)]
    for row in epochs:
        del row["test_correct"]
    return record | {"epochs": epochs, "metric": MEAN_AVERAGE_PRECISION._asdict()}


def make_study(
    arms=("plain", "tract-0.1", "tract-0.2", "lr-10"), budgets=(5, 10, 20), seeds=(0, 1, 2)
):
    """Return the records of a comparison with plausible learning curves."""
    gains = {"plain": 0.0, "tract-0.1": 3.0, "tract-0.2": 2.2, "lr-10": -0.4}
    records = []
    for budget in budgets:
        for seed in seeds:
            luck = random.Random(100 * budget + seed)
            base = 62 + 5.5 * math.log2(budget / 5) + luck.gauss(0, 0.8)
            for arm in arms:
                noise = random.Random(f"{arm}{budget}{seed}")
                gain = gains.get(arm, 0.0)
                end = base + gain + noise.gauss(0, 0.5)
                rate = 2.2 + 0.2 * gain
                curve = [
                    round(
                        (end - (end - 15) * math.exp(-rate * epoch / budget * (1 + epoch / budget)))
                        + noise.gauss(0, 0.9) * (1 - epoch / budget),
                        2,
                    )
                    for epoch in range(1, budget + 1)
                ]
                record = make_record(
                    arm, budget, seed, curve, seconds=3.0 * (1.04 if "tract" in arm else 1.0)
                )
                for row in record["epochs"]:
                    scale = 0.9 if "tract" in arm else 0.25
                    row["first_layer_grad_norm"] = (
                        scale / row["epoch"] ** 0.4 * math.exp(noise.gauss(0, 0.1))
                    )
                    row["train_seconds"] *= math.exp(noise.gauss(0, 0.02))
                records.append(record)
    return records


def make_arms(budget=3, **accuracies):
    """Return records of arms (underscores for dashes), one for each final accuracy."""
    return [
        make_record(arm.replace("__", ".").replace("_", "-"), budget, seed, value)
        for arm, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


def make_curves(plain, arm, name="tract-0.1"):
    """Return records of plain and one arm; each maps a budget to accuracies of seeds."""
    return [
        make_record(title, budget, seed, value)
        for title, curve in (("plain", plain), (name, arm))
        for budget, values in curve.items()
        for seed, value in enumerate(values)
    ]
