"""Checkpoints: the whole state of a run in one safetensors file, which cannot hold code.

A file's name contains its step and its SHA-256, so that a damaged file is recognised. The newest
two are kept: if the newest is damaged, the one before is used.
"""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from trainact.errors import TrActTypeError
from trainact.lab.files import set_aside, write_atomically

__all__ = ["has_checkpoint", "load_checkpoint", "remove_checkpoints", "save_checkpoint"]

_NAME = re.compile(r"checkpoint-(\d{9})-([0-9a-f]{16})\.safetensors")
KEPT = 2


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state of a run after ``step`` steps: nested dicts, lists, tensors and numbers."""
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_pack(state, "state", tensors))
    content = safetensors.torch.save(tensors, metadata={"skeleton": skeleton})
    digest = hashlib.sha256(content).hexdigest()[:16]
    path = folder / f"checkpoint-{step:09d}-{digest}.safetensors"
    write_atomically(path, content)
    for older, _ in _list(folder)[KEPT:]:
        older.unlink(missing_ok=True)
    return path


def load_checkpoint(folder: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the newest undamaged state, or None; damaged files are reported and set aside."""
    for path, digest in _list(folder):
        state = _read(path, digest)
        if state is not None:
            return state
        kept = set_aside(path)
        report(f"checkpoint {path.name} is damaged; it is kept as {kept.name} and not used")
    return None


def _read(path: Path, digest: str) -> dict[str, Any] | None:
    """Return the state in a file, or None if the file is damaged."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest()[:16] != digest:
            return None
        tensors = safetensors.torch.load(content)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        state = _unpack(json.loads(header["__metadata__"]["skeleton"]), tensors)
    except Exception:  # raised by the disk, by safetensors, and by a file that others wrote
        return None
    return state if isinstance(state, dict) else None


def has_checkpoint(folder: Path) -> bool:
    """Return whether there is a checkpoint, damaged or not."""
    return bool(_list(folder))


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run that has ended; damaged ones, set aside, stay."""
    for path, _ in _list(folder):
        path.unlink(missing_ok=True)


def _list(folder: Path) -> list[tuple[Path, str]]:
    """Return path and digest of all checkpoints, newest first."""
    matches = [_NAME.fullmatch(path.name) for path in folder.glob("checkpoint-*")]
    found = sorted((match for match in matches if match), key=lambda m: int(m[1]), reverse=True)
    return [(folder / match[0], match[2]) for match in found]


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` for JSON, with its tensors moved to ``tensors`` under their names."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[k, _pack(v, f"{name}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        items = [_pack(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return {type(value).__name__: items}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TrActTypeError(
        f"{name} of a checkpoint is a {type(value).__name__}; only tensors, numbers, strings, "
        "lists, tuples and dicts can be saved without pickling."
    )


def _unpack(packed: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    [(kind, content)] = packed.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "dict":
            return {key: _unpack(item, tensors) for key, item in content}
        case "list" | "tuple":
            items = [_unpack(item, tensors) for item in content]
            return items if kind == "list" else tuple(items)
    return content
