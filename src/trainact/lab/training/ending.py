"""What is left of a run that has ended: its record's content, and its weights."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from trainact.lab.environment import describe_environment
from trainact.lab.files import write_atomically
from trainact.lab.metric import ACCURACY
from trainact.lab.recipes.recipe import identify, recipe_to_dict
from trainact.lab.records.record import FORMAT
from trainact.lab.training.session import Session

__all__ = ["make_record", "save_weights"]


def make_record(session: Session, failure: str | None) -> dict[str, Any]:
    """Return everything that is to be known of a run; ``failure`` says why it diverged, if so."""
    recipe, data, accelerator = session.recipe, session.data, session.accelerator
    metric = {} if session.metric == ACCURACY else {"metric": session.metric._asdict()}
    return {
        "format": FORMAT,
        "status": "complete" if failure is None else "diverged",
        "kind": "smoke" if recipe.run.smoke else "full",
        "arm": recipe.run.arm or ("tract" if recipe.tract.enabled else "plain"),
        "budget": recipe.schedule.epochs,
        "seed": recipe.run.seed,
        "recipe": recipe_to_dict(recipe),
        "recipe_id": identify(recipe),
        "environment": {
            **describe_environment(str(accelerator.device)),
            "ranks": accelerator.num_processes,
        },
        "data": {
            "name": data.name,
            "fingerprint": data.fingerprint,
            "train_images": len(data.train),
            "test_images": len(data.test),
            "classes": len(data.classes),
            "mean": list(session.standard.mean),
            "std": list(session.standard.std),
        },
        "model": {
            "name": recipe.model.name,
            "parameters": sum(p.numel() for p in session.network.parameters()),
            "first_layers": session.first_layers,
            "initial_weights": session.initial_weights,
            "weights": None if session.weights is None else asdict(session.weights),
        },
        "order": session.order,
        **metric,
        "epochs": session.history,
        "failure": failure,
        "seconds": sum(e["train_seconds"] + e["test_seconds"] for e in session.history),
        "sessions": session.sessions,
    }


def save_weights(network: nn.Module, path: Path) -> None:
    """Write a network's values under its ordinary keys."""
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in network.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    write_atomically(path, safetensors.torch.save(tensors))
