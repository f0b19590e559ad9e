"""Seeds derived from names and counters, and the states of the global generators."""

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["capture_states", "make_generator", "mix", "restore_states", "seed_everything"]


def mix(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on all parts and on nothing else.

    >>> mix(0, "order", 1) == mix(0, "order", 1) != mix(0, "order", 2)
    True
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def make_generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator seeded by `mix`."""
    return torch.Generator().manual_seed(mix(*parts))


def seed_everything(*parts: int | str) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    seed = mix(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture_states() -> dict[str, Tensor]:
    """Return the states of all global generators, as tensors."""
    version, words, gauss = random.getstate()
    if gauss is not None:  # set by random.gauss
        words = (*words, int(np.float64(gauss).view(np.int64)))
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    del name
    states = {
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "numpy": torch.tensor([*map(int, keys), position, has_gauss], dtype=torch.int64),
        "numpy_cached": torch.tensor([cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_states(states: dict[str, Any]) -> None:
    """Restore the states that `capture_states` returned."""
    version, *words = states["python"].tolist()
    gauss = float(np.int64(words.pop()).view(np.float64)) if len(words) > 625 else None
    random.setstate((version, tuple(words), gauss))
    *keys, position, has_gauss = states["numpy"].tolist()
    cached = float(states["numpy_cached"])
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
