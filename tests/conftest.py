"""Shared fixtures: photographs, and one hypothesis profile for each of the two commands."""

import atexit
import functools
import io
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from photo_samples import write_samples

for variable in list(
    os.environ
):  # tests see no launcher, cluster or terminal that they did not make
    if variable.startswith((
        "ACCELERATE_", "COLUMNS", "FORCE_COLOR", "GROUP_", "LINES", "LOCAL_", "MASTER_", "NO_COLOR",
        "OMPI_", "PET_", "PMI_", "RANK", "RAY_", "ROLE_", "SLURM_", "TORCHELASTIC_", "TRAINACT_CACHE",
        "TTY_", "WORLD_SIZE",
    )):  # fmt: skip
        del os.environ[variable]

# Some virtual machines list AMX but kill a process that uses it, as bfloat16 products would.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

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


@functools.cache
def find_samples() -> Path:
    """Return the folder of image samples, or of crops that stand in for them."""
    folder = os.environ.get("TRAINACT_SAMPLES")
    if folder:
        return Path(folder)
    made = tempfile.mkdtemp(prefix="trainact-samples-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return write_samples(Path(made))


@pytest.fixture(scope="session")
def samples() -> Path:
    """Folder of photographs: ``cifar10/test.parquet`` and folders by class."""
    if not os.environ.get("TRAINACT_SAMPLES"):
        pytest.importorskip("skimage", reason="the photographs are in scikit-image's wheel")
    return find_samples()


@pytest.fixture(scope="session")
def real_samples() -> Path:
    """Folder of parts of the published data sets, in their users' layouts."""
    folder = os.environ.get("TRAINACT_SAMPLES")
    if not folder:
        pytest.skip("needs parts of the published data sets: set TRAINACT_SAMPLES to their folder")
    return Path(folder)


@pytest.fixture(scope="session")
def cifar_images(samples: Path) -> Tensor:
    """32 photographs, those of the CIFAR-10 sample if it is there, float64 in [0, 255], [32, 3, 32, 32]."""
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
