"""Images in memory or read one by one, and the way from one to the other."""

import contextlib
import hashlib
import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainact.lab.data.images import DataError, Images, ImageStream, ImageTensor
from trainact.lab.data.pictures import fit_picture, picture_to_tensor, tensor_to_picture
from trainact.lab.recipe import DataFields

__all__ = ["TensorReader", "decode_stream", "store_images"]

MEMORY_LIMIT = 2 * 1024**3  # bytes of pixels that are decoded unasked
CHUNK = 512  # images decoded between two looks at the results


@dataclass(frozen=True, eq=False)
class TensorReader:
    """Reads rows of images that are in memory, uint8 [N, C, H, W], as an `ImageStream` does."""

    images: Tensor

    def __call__(self, row: int) -> Any:
        """Return the image of a row as a PIL image in RGB."""
        return tensor_to_picture(self.images[row])

    def describe(self, row: int) -> tuple[str, int]:
        """Return the SHA-256 of the image, which has no name, and its size in bytes."""
        pixels = self.images[row].contiguous().numpy()
        return hashlib.sha256(pixels.data).hexdigest(), pixels.nbytes


def store_images(train: Images, test: Images, fields: DataFields) -> tuple[Images, Images]:
    """Return both parts as ``fields.storage`` says, at ``fields.image_size`` if in memory.

    With "auto" images go to memory if all their pixels take at most `MEMORY_LIMIT` and training
    does not cut boxes of many sizes out of the originals (``crop="resized"``).

    Raises:
        DataError: an image cannot be read, or sizes differ and none is asked for.
    """
    storage = fields.storage
    if storage == "auto":
        keep = fields.crop != "resized" and _fits_memory(train, test, fields.image_size)
        storage = "memory" if keep else "stream"
    if storage == "stream":
        return _stream(train), _stream(test)
    return _hold(train, fields.image_size), _hold(test, fields.image_size)


def decode_stream(stream: ImageStream, size: int) -> ImageTensor:
    """Return all images of a stream, uint8 [N, 3, size, size]; ``size`` 0 is the images' own.

    Raises:
        DataError: images cannot be read (all are tried first), or their sizes differ.
    """
    images: Tensor | None = None
    bad: list[DataError] = []
    with contextlib.closing(_decode_all(stream, size)) as results:
        for at, result in enumerate(results):
            if isinstance(result, DataError):
                bad.append(result)
                continue
            if images is None:
                images = torch.empty((len(stream), *result.shape), dtype=torch.uint8)
            if result.shape != images.shape[1:]:
                raise DataError(_report_sizes(stream, at, images.shape, result.shape))
            images[at] = result
    if bad or images is None:
        raise DataError(_report_bad(bad, len(stream)))
    return ImageTensor(images, stream.labels)


def _decode_all(stream: ImageStream, size: int) -> Generator[Tensor | DataError]:
    """Give the images, or why they cannot be read, in order; threads decode them."""
    from tqdm import tqdm

    decode = partial(_decode, stream.read, size)
    threads = min(8, os.cpu_count() or 1)
    with (
        ThreadPoolExecutor(threads) as pool,
        tqdm(total=len(stream), desc="decoding images", unit="", delay=2, mininterval=1) as bar,
    ):
        for start in range(0, len(stream), CHUNK):
            chunk = stream.items[start : start + CHUNK]
            yield from pool.map(decode, chunk)
            bar.update(len(chunk))


def _decode(read: Any, size: int, item: Any) -> Tensor | DataError:
    try:
        picture = read(item)
    except DataError as error:
        return error
    return picture_to_tensor(fit_picture(picture, size) if size else picture)


def _report_bad(bad: list[DataError], total: int) -> str:
    lines = [f"  {error}" for error in bad[:5]]
    if len(bad) > 5:
        lines.append(f"  and {len(bad) - 5} more")
    return "\n".join([f"{len(bad)} of {total} images cannot be read:", *lines])


def _report_sizes(stream: ImageStream, at: int, first: torch.Size, other: torch.Size) -> str:
    name, _ = stream.read.describe(stream.items[at])  # type: ignore[attr-defined]
    return (
        f"images differ in size: the first is {first[-1]} x {first[-2]} pixels, {name} is "
        f"{other[-1]} x {other[-2]}. Set data.image_size to the side that all shall have."
    )


def _fits_memory(train: Images, test: Images, size: int) -> bool:
    """Return whether the pixels may be held; images that are in memory already always may."""
    if isinstance(train, ImageTensor):
        return True
    width, height = (size, size) if size else train.read(train.items[0]).size
    return (len(train) + len(test)) * 3 * width * height <= MEMORY_LIMIT


def _stream(images: Images) -> ImageStream:
    if isinstance(images, ImageStream):
        return images
    return ImageStream(TensorReader(images.images), tuple(range(len(images))), images.labels)


def _hold(images: Images, size: int) -> ImageTensor:
    if isinstance(images, ImageStream):
        return decode_stream(images, size)
    if size in {0, images.images.shape[-1]} and size in {0, images.images.shape[-2]}:
        return images
    channels = images.images.shape[1]
    resized = decode_stream(_stream(images), size).images
    return ImageTensor(resized[:, :channels].contiguous(), images.labels)
