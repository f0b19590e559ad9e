"""Steps at a recipe's image and batch size, on random images: does a run fit into the memory?"""

import contextlib
import dataclasses
import gc
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from trainact.errors import TrActValueError
from trainact.lab.data import ImageData, ImageTensor, load_data
from trainact.lab.data.decoding import tensor_to_picture
from trainact.lab.data.names import DETECTION
from trainact.lab.data.objects import AnnotatedImage, DetectionData, Objects
from trainact.lab.data.published import ImageCounts, count_images
from trainact.lab.data.storage import MEMORY_LIMIT, store_images
from trainact.lab.models.detection.faster_rcnn import DETECTOR, FasterRcnnFields
from trainact.lab.randomness import make_generator
from trainact.lab.recipes.recipe import Recipe, change_recipe
from trainact.lab.running.plan import PlannedRun
from trainact.lab.schema import build_table
from trainact.lab.text import count
from trainact.lab.training.machine import start_machine
from trainact.lab.training.train import find_session

__all__ = ["StepMemory", "choose_runs", "measure_step"]

STEPS = 2
"""The optimizer allocates its state in the first step, so the second one needs more memory."""
MOST_STEPS = 20
"""With fp16 the first steps overflow and are skipped; they do not count."""
GIB = 1024**3
KIB_OR_BYTE = 1 if sys.platform == "darwin" else 1024
"""The unit of ``ru_maxrss``."""
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""Texts in the errors of the allocators of GPUs and CPUs."""


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """The peak memory of training steps, in bytes."""

    images: int  # of a batch
    size: str  # of an image, in pixels
    parts: int  # micro-batches
    precision: str
    device: str
    total: int  # of the device
    peak: int = 0
    failure: str = ""  # why the steps did not fit; empty if they did

    def describe(self) -> str:
        """Return one line for the user."""
        parts = f" in {self.parts} parts" if self.parts > 1 else ""
        precision = "float32" if self.precision == "no" else self.precision
        batch = f"{count(self.images, 'image')} of {self.size}{parts}, {precision}"
        where = f"{self.total / GIB:.1f} GiB on {self.device}"
        if not self.failure:
            return f"{batch}: at most {self.peak / GIB:.2f} of {where}"
        remedy = f"run.accumulation={2 * self.parts}, or several GPUs with torchrun"
        if 2 * self.parts > self.images:
            remedy = "a device with more memory"
        return f"{batch}: DOES NOT FIT into {where} ({self.failure}); use {remedy}"


def choose_runs(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return the first run of each network and arm: budgets and seeds need the same memory."""
    first: dict[tuple[Path, str], PlannedRun] = {}
    for run in runs:
        first.setdefault((run.root, run.recipe.arm), run)
    return list(first.values())


def measure_step(recipe: Recipe) -> StepMemory:
    """Take training steps of a run at its real size, and return their peak memory.

    The images are random, and so are the initial weights. On a CPU the peak is that of the whole
    process. Under torchrun every rank takes its share.
    """
    counts = _count(recipe)
    recipe = _prepare(recipe)
    accelerator = start_machine(recipe.run, Path())
    device, run = accelerator.device, recipe.run
    size = f"{counts.size} x {_find_width(recipe, counts)}"
    place = run.accumulation, run.precision, *_describe_device(device)
    memory = StepMemory(recipe.data.batch_size, size, *place)
    try:
        with tempfile.TemporaryDirectory() as folder:
            peak = _take_steps(recipe, counts, accelerator, Path(folder))
        return dataclasses.replace(memory, peak=peak)
    except RuntimeError as error:  # a GPU's error is a subclass, a CPU's is not
        if not any(text in str(error) for text in OUT_OF_MEMORY):
            raise
        return dataclasses.replace(memory, failure=str(error).strip().splitlines()[0])
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _take_steps(recipe: Recipe, counts: ImageCounts, accelerator: Accelerator, folder: Path) -> int:
    """Return the peak of the steps; data sets in memory count with all their training images."""
    data = _make_data(recipe, counts, folder)
    _reset_peak(accelerator.device)
    session = find_session(data)(recipe, data, accelerator)
    session.network.train()
    [(share, images)] = session.batches.read(0, 0)
    taken = 0
    for step in range(MOST_STEPS):
        taken += float(session.take_step(share, images, step)[-1]) > 0  # its gradient was finite
        if taken == STEPS:
            break
    rest = 0
    if isinstance(data.train, ImageTensor):
        rest = max(counts.train - len(data.train), 0) * data.train.images[0].nbytes
    return _read_peak(accelerator.device) + (rest if rest <= MEMORY_LIMIT else 0)


def _count(recipe: Recipe) -> ImageCounts:
    """Return classes and image size of a recipe's data; an unknown data set is loaded for them."""
    fields = recipe.data
    known = count_images(fields)
    if known is None:
        data = load_data(fields)
        size = fields.image_size
        if not size and isinstance(data.train, ImageTensor):
            size = data.train.images.shape[-1]
        known = ImageCounts(len(data.train), len(data.test), len(data.classes), size)
    if known.size < 1:
        raise TrActValueError(
            f"the images of {fields.name} have no known size; set data.image_size."
        )
    return known


def _prepare(recipe: Recipe) -> Recipe:
    """Return a recipe that needs neither data nor weights nor a tracker."""
    changes: dict[str, Any] = {
        "run.smoke": True,
        "run.tracker": "none",
        "model.weights": "",
        "model.start": "default",
        "data.classes": 0,
        "data.train_images": 0,
        "data.test_images": 0,
        "data.held_out": 0,
        "data.evaluate_on": "test",
        "data.workers": min(recipe.data.workers, os.cpu_count() or 1),
    }
    if recipe.model.name == DETECTOR:
        changes["model.arguments.weights"] = "none"
    if recipe.run.precision == "fp16" and not torch.cuda.is_available():
        changes["run.precision"] = "no"
    return change_recipe(recipe, changes)


def _make_data(recipe: Recipe, counts: ImageCounts, folder: Path) -> Any:
    """Return one batch of random images of the recipe's size."""
    batch, size = recipe.data.batch_size, counts.size
    if recipe.data.name == DETECTION:
        return _make_scenes(batch, size, _find_width(recipe, counts), counts.classes, folder)
    shape = (batch, 3, size, size)
    generator = make_generator("full size")
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    train = ImageTensor(images, torch.arange(batch) % counts.classes)
    stored = store_images(train, train, recipe.data, lambda text: None)
    classes = tuple(map(str, range(counts.classes)))
    return ImageData(recipe.data.name, *stored, classes, "")


def _find_width(recipe: Recipe, counts: ImageCounts) -> int:
    """Return the width of the images; a detector scales them to this one at most."""
    if recipe.data.name != DETECTION:
        return counts.size
    fields = build_table(FasterRcnnFields, recipe.model.arguments, "model.arguments")
    return max(counts.size, int(fields.longest))


def _make_scenes(number: int, short: int, long: int, classes: int, folder: Path) -> DetectionData:
    """Return scenes of the largest size that a detector scales images to, with one object each."""
    pixels = torch.full((3, short, long), 120, dtype=torch.uint8)
    pixels[:, short // 4 : short // 2, long // 4 : long // 2] = 250
    file = folder / "scene.png"
    tensor_to_picture(pixels).save(file)
    box = torch.tensor([[long // 4, short // 4, long // 2, short // 2]], dtype=torch.float32)
    objects = Objects(box, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.bool))
    scene = AnnotatedImage("scene", file, long, short, objects)
    return DetectionData(
        DETECTION, (scene,) * number, (scene,), tuple(map(str, range(classes))), ""
    )


def _describe_device(device: torch.device) -> tuple[str, int]:
    """Return the name of a device and its memory in bytes."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return properties.name, properties.total_memory
    return device.type.upper(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # Linux alone has it
        Path("/proc/self/clear_refs").write_text("5")


def _read_peak(device: torch.device) -> int:
    """Return the peak of allocated memory since `_reset_peak`, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(peak) * 1024
    except (OSError, ValueError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB_OR_BYTE
