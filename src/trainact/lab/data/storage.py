"""Store images in memory or as streams, and convert between the two."""

import contextlib
import os
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainact.lab.data.decoding import fit_picture, picture_to_tensor, tensor_to_picture
from trainact.lab.data.images import (
    DataError,
    Images,
    ImageStream,
    ImageTensor,
    Note,
    hash_tensor,
)
from trainact.lab.recipes.recipe import DataFields

__all__ = ["MEMORY_LIMIT", "TensorReader", "decode_streams", "store_images"]

MEMORY_LIMIT = 2 * 1024**3  # bytes of pixels that storage='auto' decodes
CHUNK = 512  # images decoded at a time
REPORT_SECONDS = 10  # between two messages about the progress of decoding


@dataclass(frozen=True, eq=False)
class TensorReader:
    """Reads images in memory, uint8 [N, C, H, W], one by one for an `ImageStream`."""

    images: Tensor

    def __call__(self, row: int) -> Any:
        """Return the image of a row as a PIL image in RGB."""
        return tensor_to_picture(self.images[row])

    def describe(self, row: int) -> tuple[str, int]:
        """Return the SHA-256 of the image, as it has no name, and its size in bytes."""
        return hash_tensor(self.images[row]), self.images[row].nbytes


def store_images(
    train: Images, test: Images, fields: DataFields, note: Note
) -> tuple[Images, Images]:
    """Return both parts stored as in ``fields.storage``, at ``fields.image_size`` if in memory.

    With "auto", images are held in memory if all pixels need at most `MEMORY_LIMIT` and no field
    needs the original images, as ``crop="resized"`` does.

    Raises:
        DataError: an image cannot be read, or sizes differ and ``fields.image_size`` is 0.
    """
    storage = fields.storage
    if storage == "auto":
        keep = not fields.find_single() and _fits_memory(train, test, fields.image_size)
        storage = "memory" if keep else "stream"
    if storage == "stream":
        return _stream(train), _stream(test)
    held_train, held_test = _hold([train, test], fields.image_size, note)
    first, second = (list(part.images.shape[1:]) for part in (held_train, held_test))
    if first != second and len(held_test):
        raise DataError(
            f"training images are {first} (channels, height, width), test images {second}. Set "
            "data.image_size, the side of all images; the channels must agree."
        )
    return held_train, held_test


def decode_streams(streams: Sequence[ImageStream], size: int, note: Note) -> list[ImageTensor]:
    """Return all images of each stream, uint8 [N, 3, size, size]; ``size`` 0 keeps their own.

    Raises:
        DataError: images cannot be read (all are tried first), or differ in size in a stream.
    """
    bad: list[DataError] = []
    decoded = [_decode_stream(stream, size, bad, note) for stream in streams]
    if bad:
        raise DataError(_format_bad(bad, sum(map(len, streams)))) from bad[0].__cause__
    return decoded


def _decode_stream(stream: ImageStream, size: int, bad: list[DataError], note: Note) -> ImageTensor:
    """Return the images; append the errors of those that cannot be read to ``bad``."""
    images = torch.empty((0, 3, size, size), dtype=torch.uint8)
    with contextlib.closing(_decode_all(stream, size, note)) as results:
        for at, result in enumerate(results):
            if isinstance(result, DataError):
                bad.append(result)
                continue
            if not len(images):
                images = torch.empty((len(stream), *result.shape), dtype=torch.uint8)
            if result.shape != images.shape[1:]:
                raise DataError(_format_sizes(stream, at, images.shape, result.shape))
            images[at] = result
    return ImageTensor(images, stream.labels)


def _decode_all(stream: ImageStream, size: int, note: Note) -> Generator[Tensor | DataError]:
    """Yield each image, or the error of one that cannot be read, in order; threads decode them."""
    decode = partial(_decode, stream.read, size)
    reported = time.monotonic()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(stream), CHUNK):
            if time.monotonic() - reported > REPORT_SECONDS:
                note(f"decoded {start} of {len(stream)} images")
                reported = time.monotonic()
            yield from pool.map(decode, stream.items[start : start + CHUNK])


def _decode(read: Any, size: int, item: Any) -> Tensor | DataError:
    try:
        picture = read(item)
    except DataError as error:
        return error
    return picture_to_tensor(fit_picture(picture, size) if size else picture)


def _format_bad(bad: list[DataError], total: int) -> str:
    lines = [f"  {error}" for error in bad[:5]]
    if len(bad) > 5:
        lines.append(f"  and {len(bad) - 5} more")
    return "\n".join([f"{len(bad)} of {total} images cannot be read:", *lines])


def _format_sizes(stream: ImageStream, at: int, first: torch.Size, other: torch.Size) -> str:
    name, _ = stream.read.describe(stream.items[at])  # type: ignore[attr-defined]
    return (
        f"images differ in size: the first is {first[-1]} x {first[-2]} pixels, {name} is "
        f"{other[-1]} x {other[-2]}. Set data.image_size, the side of all images."
    )


def _fits_memory(train: Images, test: Images, size: int) -> bool:
    """Return whether the pixels fit; images that are in memory already always do."""
    if isinstance(train, ImageTensor):
        return True
    width, height = (size, size) if size else _find_size(train)
    return (len(train) + len(test)) * 3 * width * height <= MEMORY_LIMIT


def _find_size(stream: ImageStream) -> tuple[int, int]:
    """Return the size of the first image that can be read; the others are reported later."""
    for item in stream.items:
        with contextlib.suppress(DataError):
            return stream.read(item).size
    return 0, 0


def _stream(images: Images) -> ImageStream:
    if isinstance(images, ImageStream):
        return images
    return ImageStream(TensorReader(images.images), tuple(range(len(images))), images.labels)


def _hold(parts: Sequence[Images], size: int, note: Note) -> list[ImageTensor]:
    """Return all parts in memory, scaled to the size."""
    held = [part for part in parts if isinstance(part, ImageTensor)]
    if len(held) == len(parts) and (
        not size or all(part.images.shape[2:] == (size, size) for part in held)
    ):
        return held
    decoded = decode_streams([_stream(part) for part in parts], size, note)
    for at, part in enumerate(parts):
        if isinstance(part, ImageTensor) and part.images.shape[1] == 1:  # keep grey images grey
            decoded[at] = ImageTensor(decoded[at].images[:, :1].contiguous(), part.labels)
    return decoded
