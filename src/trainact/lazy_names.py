"""Public names of a package that are imported when they are first used (PEP 562)."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["make_getattr"]


def make_getattr(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: its name.
        names: the public names by the module that defines them. The modules are names too.
    """
    homes = {name: module for module, members in names.items() for name in members}

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return __getattr__
