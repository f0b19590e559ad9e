"""What a measurement was made with: versions, hardware, and the commit of this project."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import trainact

__all__ = ["count_threads", "describe_environment"]

PACKAGES = ("torch", "torchvision", "timm", "torch_tract", "accelerate", "numpy")


def describe_environment(device: str = "cpu") -> dict[str, Any]:
    """Return everything that a reader needs to trust, or to repeat, a number."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "trainact": trainact.__version__,
        **_describe_commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: v for name in PACKAGES if (v := _read_version(name)) is not None},
        "device": device,
        "processor": _read_processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if device.startswith("cuda") else None,
    }


def count_threads(environment: Mapping[str, Any]) -> str:
    """Return how many threads computed.

    >>> count_threads({"threads": 1}), count_threads({"threads": 2})
    ('1 thread', '2 threads')
    """
    number = environment.get("threads")
    return f"{number} thread{'s' * (number != 1)}"


def _read_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_processor() -> str:
    """Return the processor's name, as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _describe_commit() -> dict[str, Any]:
    """Return the commit of the source and whether the work tree was clean; None if not in git."""
    commit = _ask_git("rev-parse", "HEAD")
    changes = _ask_git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "clean": None if changes is None else changes == ""}


def _ask_git(*arguments: str) -> str | None:
    folder = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
