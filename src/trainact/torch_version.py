"""The oldest torch that trainact works with; the check does not import torch."""

import importlib.metadata
import re
import sys

from trainact.errors import TorchVersionError

__all__ = ["OLDEST_TORCH", "check_torch_version"]

OLDEST_TORCH = (2, 9)


def check_torch_version() -> None:
    """Raise a TorchVersionError if the installed torch is too old; an unknown version passes."""
    version = _find_version()
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and tuple(map(int, numbers.groups())) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise TorchVersionError(
            f"trainact needs torch {oldest} or newer, but torch {version} is installed: run "
            f"pip install --upgrade 'torch>={oldest}'. On older versions torch.compile would train "
            "without TrAct."
        )


def _find_version() -> str:
    """Return the version of torch, or an empty text if there is none."""
    if "torch" in sys.modules:
        return str(getattr(sys.modules["torch"], "__version__", ""))
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
