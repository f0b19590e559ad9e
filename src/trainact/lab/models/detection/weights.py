"""VGG-16 weights from a local file, under torchvision's names."""

from pathlib import Path

import torch
from torch import Tensor, nn

from trainact.lab.data.images import DataError
from trainact.lab.models.pretrained import LoadedWeights, hash_file, open_weights

__all__ = ["describe_weights", "has_head", "load_part", "read_weights"]


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file or of a file of ``torch.save``; no code is run.

    Raises:
        DataError: the file is missing, damaged, or holds anything but named tensors.
    """
    if not path.is_file():
        raise DataError(f"there is no file of weights {path}.")
    tensors = open_weights(path)
    if not isinstance(tensors, dict) or not all(isinstance(v, Tensor) for v in tensors.values()):
        raise DataError(f"{path} does not hold named tensors, as a state_dict does.")
    return tensors


def describe_weights(name: str) -> LoadedWeights | None:
    """Return which file a detector begins with and what it lacks; None for ``none``."""
    if name == "none":
        return None
    path = Path(name).expanduser()
    missing = () if has_head(read_weights(path)) else ("box_head",)
    return LoadedWeights(str(path), hash_file(path), (), (), missing, ())


def has_head(tensors: dict[str, Tensor]) -> bool:
    """Return whether the file holds the linear layers too."""
    return any(key.startswith("classifier.") for key in tensors)


def load_part(layer: nn.Module, tensors: dict[str, Tensor], prefix: str, path: Path) -> None:
    """Copy ``PREFIX.weight`` and ``PREFIX.bias`` into a layer.

    Raises:
        DataError: one of them is missing or of another shape.
    """
    for name, parameter in layer.named_parameters():
        key = f"{prefix}.{name}"
        if key not in tensors:
            raise DataError(f"{path} lacks {key}, which torchvision's vgg16 has.")
        if tensors[key].shape != parameter.shape:
            raise DataError(
                f"{key} of {path} has the shape {tuple(tensors[key].shape)}, the network's "
                f"{tuple(parameter.shape)}: is it of a network of another width?"
            )
        with torch.no_grad():
            parameter.copy_(tensors[key])
