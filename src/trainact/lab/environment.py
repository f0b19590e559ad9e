"""The environment of a measurement: versions, hardware, and the commit of this project."""

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
from trainact.lab.text import count

__all__ = ["count_threads", "describe_environment", "describe_hardware"]

PACKAGES = ("torch", "torchvision", "timm", "torch_tract", "accelerate", "numpy")


def describe_environment(device: str = "cpu") -> dict[str, Any]:
    """Return versions, hardware and commit, for a record."""
    is_cuda = torch.device(device).type == "cuda"
    accelerator = torch.cuda.get_device_name(device) if is_cuda else None
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
        "accelerator": accelerator,
    }


def describe_hardware(environment: Mapping[str, Any]) -> str:
    """Return the GPU's name, or the processor's with the number of threads.

    >>> describe_hardware({"accelerator": None, "processor": "AMD EPYC", "threads": 2})
    'AMD EPYC, 2 threads'
    """
    processor = f"{environment.get('processor')}, {count_threads(environment)}"
    return environment.get("accelerator") or processor


def count_threads(environment: Mapping[str, Any]) -> str:
    """Return the number of threads, as ``1 thread``."""
    return count(environment.get("threads", 0), "thread")


def _read_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _describe_commit() -> dict[str, Any]:
    """Return the commit of this source and whether its files are unchanged; None outside git.

    A changed record in ``results`` is no change of the source. An installed copy may be inside
    another project's repository, whose commit says nothing here.
    """
    if not _run_git("ls-files", __file__):
        return {"commit": None, "clean": None}
    source = (":(top)", ":(top,exclude)results")
    changes = _run_git("status", "--porcelain", "--untracked-files=no", "--", *source)
    clean = None if changes is None else changes == ""
    return {"commit": _run_git("rev-parse", "HEAD"), "clean": clean}


def _run_git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
