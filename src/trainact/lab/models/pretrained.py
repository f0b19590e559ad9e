"""Load initial weights from a file of this lab, of timm or of DeiT.

A classifier of another size keeps its random weights, and the position embeddings of a vision
transformer are resized for another resolution. All other weights must fit, unless the recipe sets
``weights_strict`` to false; those that do not are reported.
"""

import glob
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.lab.data.images import DataError
from trainact.lab.recipes.recipe import ModelFields
from trainact.lab.torchvision_import import import_torchvision

__all__ = [
    *("LoadedWeights", "find_weights", "hash_file"),
    *("load_weights", "open_weights", "read_weights"),
]

WRAPPERS = ("model", "state_dict")  # keys of the weights in checkpoints of training scripts
PREFIXES = ("module.", "_orig_mod.")  # of DDP and torch.compile
SHOWN = 5


@dataclass(frozen=True)
class LoadedWeights:
    """Which weights of a file were loaded."""

    file: str
    sha256: str  # of the bytes of the file
    replaced: tuple[str, ...]  # of the classifier, random because its size differs
    resized: tuple[str, ...]  # position embeddings
    missing: tuple[str, ...]  # not in the file, so they stay random
    unexpected: tuple[str, ...]  # not in the network

    def describe(self) -> str:
        """Return a summary in one line."""
        kinds = {
            "random for another number of classes": self.replaced,
            "resized": self.resized,
            "missing and random": self.missing,
            "not used": self.unexpected,
        }
        parts = [f"{what}: {_list(names)}" for what, names in kinds.items() if names]
        return f"weights from {self.file}" + "".join(f"; {part}" for part in parts)


def find_weights(fields: ModelFields, seed: int) -> Path:
    """Return the file of ``fields.weights`` for this arm and seed.

    ``{pretraining}`` is replaced by the arm that the weights were trained in, ``{seed}`` by the
    seed. A pattern with ``*`` must match one file.

    Raises:
        TrActValueError: there is no such file or more than one, or the name lacks
            ``{pretraining}`` although the recipe's arms start from different weights.
    """
    if not fields.weights:
        raise TrActValueError(
            f"the recipe starts from weights that were trained in the arm {fields.pretraining!r}: "
            "give their file as --model.weights, for example "
            "--model.weights 'weights/{pretraining}.safetensors'."
        )
    if fields.pretraining and "{pretraining}" not in fields.weights:
        raise TrActValueError(
            f"the arms of this recipe start from different weights, here those of "
            f"{fields.pretraining!r}, but model.weights is {fields.weights!r} for all: write "
            "{pretraining} in place of the arm in the name of the file or its folder."
        )
    name = fields.weights.replace("{pretraining}", fields.pretraining).replace("{seed}", str(seed))
    path = Path(name).expanduser()
    if path.is_file():
        return path
    found = sorted(glob.glob(str(path)))
    if len(found) == 1:
        return Path(found[0])
    several = f"{len(found)} files match {path}, {_list(found)}" if found else f"there is no {path}"
    raise TrActValueError(f"model.weights: {several}; give one file.")


def load_weights(
    network: nn.Module,
    path: Path,
    strict: bool,
    positions: Literal["antialiased", "bicubic"] = "antialiased",
) -> LoadedWeights:
    """Load the weights of a file into the network; ``positions`` is that of the recipe.

    Raises:
        TrActValueError: the file cannot be read; or, if ``strict``, weights other than the
            classifier's are missing, unexpected or of another shape.
    """
    given, digest = read_weights(path)
    own = network.state_dict()
    head = _find_classifier(network)
    taken: dict[str, Tensor] = {}
    lists: dict[str, list[str]] = {"replaced": [], "resized": [], "missing": [], "unexpected": []}
    shapes: list[str] = []
    for name, value in own.items():
        if name not in given:
            lists["missing"].append(name)
        elif given[name].shape == value.shape:
            taken[name] = given[name]
        elif name.rpartition(".")[0] == head:
            lists["replaced"].append(name)
        elif (resized := _resize_positions(network, name, given[name], positions)) is not None:
            taken[name] = resized
            lists["resized"].append(name)
        else:
            shapes.append(f"{name} is {list(given[name].shape)}, not {list(value.shape)}")
            lists["missing"].append(name)
    lists["unexpected"] = [name for name in given if name not in own]
    loaded = LoadedWeights(str(path), digest, **{key: tuple(value) for key, value in lists.items()})
    if strict and (loaded.missing or loaded.unexpected):
        absent = [name for name in loaded.missing if name not in given]
        raise TrActValueError(
            f"{path} does not fit the network"
            + (f"; missing: {_list(absent)}" if absent else "")
            + (f"; unexpected: {_list(loaded.unexpected)}" if loaded.unexpected else "")
            + (f"; of another shape: {_list(shapes)}" if shapes else "")
            + ". Set model.weights_strict=false to load only the weights that fit."
        )
    if not taken:
        raise TrActValueError(f"{path} holds no weight that fits the network.")
    network.load_state_dict(taken, strict=False)
    return loaded


def read_weights(path: Path) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a safetensors or PyTorch file by name, and its SHA-256.

    Only tensors are unpickled. DeiT's names for layer scale become timm's.

    Raises:
        TrActValueError: the file has another format, is damaged or holds no weights.
    """
    content, digest = open_weights(path), hash_file(path)
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    tensors = {}
    for name, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, Tensor) and isinstance(name, str):
            if (
                value.layout != torch.strided
                or value.is_quantized
                or value.is_complex()
                or value.is_meta
            ):
                raise TrActValueError(
                    f"{path}: {name} is {value.dtype}, {value.layout}, on {value.device}; weights "
                    "are dense tensors of real numbers."
                )
            for prefix in PREFIXES:
                name = name.removeprefix(prefix)
            tensors[re.sub(r"\.gamma_([12])$", r".ls\1.gamma", name)] = value
    if not tensors:
        raise TrActValueError(f"{path} holds no named weights.")
    return tensors, digest


def hash_file(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def open_weights(path: Path) -> Any:
    """Return the content of a safetensors file or a file of ``torch.save``; no code is run.

    Raises:
        DataError: the file is missing, damaged or holds other objects than tensors.
    """
    import safetensors.torch

    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # raised by pickle, zip and safetensors
        raise DataError(
            f"{path} cannot be read as weights ({type(error).__name__}: {str(error)[:200]}). "
            "Accepted are .safetensors files and PyTorch files that hold only tensors."
        ) from error


def _find_classifier(network: nn.Module) -> str:
    """Return the name of the last linear layer."""
    names = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return names[-1] if names else ""


def _resize_positions(
    network: nn.Module, name: str, positions: Tensor, kind: Literal["antialiased", "bicubic"]
) -> Tensor | None:
    """Return position embeddings for the network's grid; None for other weights.

    ``antialiased`` resizes as timm does, ``bicubic`` as DeiT: without antialiasing, whose cubic
    kernel differs also where a grid is enlarged (a = -0.5 instead of -0.75).
    """
    grid = getattr(getattr(network, "patch_embed", None), "grid_size", None)
    if name != "pos_embed" or grid is None or positions.ndim != 3:
        return None
    own = network.get_parameter(name)
    prefix = own.shape[1] - grid[0] * grid[1]
    if positions.shape[1] <= prefix:
        return None
    side = round((positions.shape[1] - prefix) ** 0.5)
    if positions.shape[2] != own.shape[2] or side**2 + prefix != positions.shape[1]:
        return None
    if kind == "bicubic":
        first, rest = positions.split([prefix, side**2], dim=1)
        pixels = rest.float().unflatten(1, (side, side)).permute(0, 3, 1, 2)
        resized = F.interpolate(pixels, size=tuple(grid), mode="bicubic", align_corners=False)
        return torch.cat([first, resized.permute(0, 2, 3, 1).flatten(1, 2).to(first.dtype)], dim=1)
    import_torchvision()
    from timm.layers import resample_abs_pos_embed

    return resample_abs_pos_embed(positions, list(grid), num_prefix_tokens=prefix)


def _list(names: "list[str] | tuple[str, ...]") -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
