"""CIFAR-10 and CIFAR-100 from their authors' server; torchvision knows where and downloads them."""

import contextlib
import functools
import http.client
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainact.lab.data import downloads
from trainact.lab.data.images import DataError
from trainact.lab.torchvision_import import import_torchvision

__all__ = ["fetch_archive"]


def fetch_archive(name: str, folder: Path) -> None:
    """Download the authors' archive into ``folder``, verify its checksum and unpack it there.

    Raises:
        DataError: the server does not answer, or the archive is not the published one.
    """
    datasets = import_torchvision().datasets
    source = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    if problem := downloads.find_problem(lambda: _ask(source.url)):
        raise DataError(f"{source.url} cannot be read ({problem})")
    with _limit_waiting(), _hide_bar(datasets.utils):
        try:
            datasets.utils.download_url(source.url, folder, source.filename, source.tgz_md5)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            reason = downloads.describe_error(error)
            raise DataError(f"{source.url} cannot be downloaded ({reason})") from error
    downloads.unpack(folder / source.filename, folder)


def _ask(url: str) -> None:
    with urllib.request.urlopen(url, timeout=downloads.ANSWER_SECONDS):
        pass


@contextlib.contextmanager
def _limit_waiting() -> Iterator[None]:
    """Give up connections that are silent for too long; torchvision sets no limit."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(downloads.ANSWER_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextlib.contextmanager
def _hide_bar(utils: Any) -> Iterator[None]:
    """Hide torchvision's progress bar unless standard error is a terminal."""
    before = utils.tqdm
    utils.tqdm = before if sys.stderr.isatty() else functools.partial(before, disable=True)
    try:
        yield
    finally:
        utils.tqdm = before
