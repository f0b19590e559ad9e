"""Images in WebDataset shards: uncompressed tar files of pairs KEY.jpg and KEY.cls.

The archives are indexed once, with the offset of each image in its file. Any image can then be
read directly, so shuffling, resuming and distribution over ranks work as for all streams.
"""

import glob
import itertools
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainact.lab.data.decoding import open_picture
from trainact.lab.data.images import DataError, ImageStream, Note
from trainact.lab.data.selection import MOST_CLASSES, Parts, name_by_number

__all__ = ["ShardItem", "ShardReader", "expand_braces", "find_shards", "read_shards"]

TEST_WORDS = ("test", "val", "valid", "validation")
PICTURES = ("jpg", "jpeg", "png", "webp", "ppm")
LAYOUT = (
    "The names of shards contain the split: imagenet-train-0000.tar and imagenet-val-0000.tar, "
    "or train/0000.tar and val/0000.tar."
)


class ShardItem(NamedTuple):
    """An image in a shard: the index of its shard, its offset and size in bytes, its name."""

    shard: int
    offset: int
    size: int
    name: str


@dataclass(frozen=True)
class ShardReader:
    """Reads images by their offsets in tar files."""

    files: tuple[str, ...]

    def __call__(self, item: ShardItem) -> Any:
        """Return the image as a PIL image in RGB."""
        file = self.files[item.shard]
        try:
            with open(file, "rb") as opened:
                opened.seek(item.offset)
                encoded = opened.read(item.size)
        except OSError as error:
            raise DataError(f"{file} cannot be read ({error.strerror}).") from error
        return open_picture(encoded, f"{file}, {item.name}")

    def describe(self, item: ShardItem) -> tuple[str, int]:
        """Return the names of shard and image, and the size of the image in bytes."""
        return f"{Path(self.files[item.shard]).name}/{item.name}", item.size


def find_shards(reference: str) -> list[Path]:
    """Return the tar files of a folder, or of names with ``{000..146}``, ``{train,val}`` or ``*``.

    Several names may be joined by ``::``. The list is empty if the text does not refer to shards.

    Raises:
        DataError: a named file does not exist.
    """
    folder = Path(reference).expanduser()
    if folder.is_dir():
        return sorted([*folder.glob("*.tar"), *folder.glob("*/*.tar")])
    if not reference.endswith(".tar"):
        return []
    found: list[Path] = []
    for name in itertools.chain(*map(expand_braces, reference.split("::"))):
        path = Path(name).expanduser()
        matches = sorted(map(Path, glob.glob(str(path)))) if "*" in name else [path]
        if not matches or not matches[0].is_file():
            raise DataError(f"data.name: there is no shard {path}.")
        found += matches
    return found


def expand_braces(text: str) -> Iterator[str]:
    """Yield the expansions of braces, as a shell does.

    >>> list(expand_braces("{a,b}-{08..10}.tar"))[:4]
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar']
    """
    match = re.search(r"\{([^{}]*)\}", text)
    if match is None:
        yield text
        return
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if numbers:
        digits = len(numbers[1])
        choices = [f"{n:0{digits}}" for n in range(int(numbers[1]), int(numbers[2]) + 1)]
    else:
        choices = match[1].split(",")
    for choice in choices:
        yield from expand_braces(text[: match.start()] + choice + text[match.end() :])


def read_shards(name: str, files: Sequence[Path], note: Note) -> Parts:
    """Return the training and test images of shards; their names contain the split.

    Classes are the numbers from 0 to the largest training label.

    Raises:
        DataError: a part is missing, an archive is damaged, or an image has no label.
    """
    parts = {part: [f for f in files if _find_part(f) == part] for part in ("train", "test")}
    for part, found in parts.items():
        if not found:
            raise DataError(f"{name} has no {part} shards among {len(files)} files. {LAYOUT}")
    train, test = (_make_stream(parts[part]) for part in ("train", "test"))
    classes = name_by_number(train.labels, name)
    empty = len(classes) - len(train.labels.unique())
    if empty:
        note(f"{name}: {empty} of {len(classes)} classes have no training image.")
    return Parts(name, train, test, classes)


def _find_part(file: Path) -> str:
    """Return train, test or an empty string, from the words of the file name, then its folder."""
    for text in (file.name, file.parent.name):
        words = re.split(r"[^a-z]+", text.lower())
        if "train" in words:
            return "train"
        if set(words) & set(TEST_WORDS):
            return "test"
    return ""


def _make_stream(files: Sequence[Path]) -> ImageStream:
    rows = [row for shard, file in enumerate(files) for row in _index(shard, file)]
    if not rows:
        raise DataError(f"{files[0]} and {len(files) - 1} more contain no image. {LAYOUT}")
    items, labels = zip(*rows, strict=True)
    return ImageStream(ShardReader(tuple(map(str, files))), items, torch.tensor(labels))


def _index(shard: int, file: Path) -> list[tuple[ShardItem, int]]:
    """Return the images and labels of an archive, in its order."""
    pictures: dict[str, ShardItem] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                key, _, kind = member.name.rpartition("/")[2].partition(".")
                key = member.name[: len(member.name) - len(kind)]
                if not member.isfile():
                    continue
                if kind.lower() in PICTURES:
                    pictures[key] = ShardItem(shard, member.offset_data, member.size, member.name)
                elif kind == "cls":
                    content = archive.extractfile(member)
                    labels[key] = _read_label(content.read() if content else b"", file, member.name)
            _check_end(file, archive.offset)
    except DataError:
        raise
    except Exception as error:  # tarfile raises almost anything for damaged headers
        raise DataError(
            f"{file} cannot be read as an uncompressed tar file ({error}). It may be truncated; "
            "download it again."
        ) from error
    for key, item in pictures.items():
        if key not in labels:
            raise DataError(f"{file}: {item.name} has no label {key}cls.")
    return [(item, labels[key]) for key, item in pictures.items()]


def _check_end(file: Path, offset: int) -> None:
    """Check that an archive ends with empty blocks, where tarfile stopped and at its last byte.

    tarfile takes a damaged header for the end.
    """
    with file.open("rb") as opened:
        opened.seek(-min(tarfile.BLOCKSIZE, file.stat().st_size), 2)
        if any(opened.read()):
            raise DataError(f"{file} is truncated: its end is missing. Download it again.")
        opened.seek(offset)
        if any(opened.read(tarfile.BLOCKSIZE)):
            raise DataError(f"{file} is damaged after byte {offset}. Download it again.")


def _read_label(content: bytes, file: Path, name: str) -> int:
    text = content.strip()
    if not text.isdigit() or len(text) > len(str(MOST_CLASSES)):
        raise DataError(f"{file}: {name} holds {content[:20]!r}, which is not a class number.")
    return int(text)
