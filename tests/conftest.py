"""Shared fixtures: real images, and one hypothesis profile for each of the two commands."""

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

for variable in list(
    os.environ
):  # tests see no launcher, cluster or terminal that they did not make
    if variable.startswith((
        "ACCELERATE_", "COLUMNS", "FORCE_COLOR", "GROUP_", "LINES", "LOCAL_", "MASTER_", "NO_COLOR",
        "OMPI_", "PET_", "PMI_", "RANK", "RAY_", "ROLE_", "SLURM_", "TORCHELASTIC_", "TRAINACT_CACHE",
        "TTY_", "WORLD_SIZE",
    )):  # fmt: skip
        del os.environ[variable]

settings.register_profile(
    "usual",
    max_examples=600,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.register_profile(
    "thorough",
    parent=settings.get_profile("usual"),
    max_examples=10_000,
    derandomize=False,
)
settings.load_profile(os.environ.get("TRAINACT_HYPOTHESIS", "usual"))


@pytest.fixture(scope="session")
def samples() -> Path:
    """Folder of real image samples, in their users' layouts."""
    folder = os.environ.get("TRAINACT_SAMPLES")
    if not folder:
        pytest.skip("needs real images: set TRAINACT_SAMPLES to a folder with cifar10/test.parquet")
    return Path(folder)


@pytest.fixture(scope="session")
def cifar_images(samples: Path) -> Tensor:
    """The first 32 test images of the CIFAR-10 sample, float64 in [0, 255], [32, 3, 32, 32]."""
    return read_cifar_images(samples, 32)


def read_cifar_images(samples: Path, count: int) -> Tensor:
    import numpy as np
    import pyarrow.parquet
    from PIL import Image

    table = pyarrow.parquet.read_table(samples / "cifar10" / "test.parquet").slice(0, count)
    pictures = [Image.open(io.BytesIO(row["img"]["bytes"])) for row in table.to_pylist()]
    return (
        torch.stack([torch.from_numpy(np.array(p)) for p in pictures]).permute(0, 3, 1, 2).double()
    )


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM as in a terminal; a process in the background may have to ignore them."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread, as in the processes that tests start: more add in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
