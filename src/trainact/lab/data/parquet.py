"""Images in Arrow tables: parquet files in the layout of the Hugging Face hub, or its tables."""

import contextlib
import glob
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainact.lab.data.decoding import open_picture
from trainact.lab.data.images import DataError, ImageStream, Note
from trainact.lab.data.selection import Parts, name_by_number, note_unused

__all__ = ["TableReader", "find_parquet", "hide_bars", "parts_from_tables", "read_parquet"]

TEST_SPLITS = ("test", "validation", "valid", "val")
INNER_FOLDERS = ("data", "plain_text", "default")
IMAGE_COLUMNS = ("img", "image")
IN_MEMORY = 2**30
"""Largest size of a split's files, in bytes, that is read into memory."""
LABEL_COLUMNS = ("label", "fine_label", "labels")


@dataclass(frozen=True, eq=False)
class TableReader:
    """Reads the images of a column of encoded bytes."""

    column: Any  # pyarrow chunked array of {bytes, path} or of bytes
    origin: str  # name of the table, for error messages

    def __call__(self, row: int) -> Any:
        """Return the image of a row as a PIL image in RGB."""
        encoded, path = self._find(row)
        name = f"{self.origin}, row {row}" + (f" ({path})" if path else "")
        return open_picture(b"" if encoded is None else encoded.to_pybytes(), name)

    def describe(self, row: int) -> tuple[str, int]:
        """Return the path of an image in the table, or else its row, and its size in bytes."""
        encoded, path = self._find(row)
        return path or str(row), 0 if encoded is None else encoded.size

    def _find(self, row: int) -> tuple[Any, str | None]:
        cell = self.column[row]
        path = None
        if hasattr(cell, "keys"):
            with contextlib.suppress(UnicodeDecodeError, KeyError):
                path = cell["path"].as_py()
            cell = cell["bytes"]
        return cell.as_buffer() if cell.is_valid else None, path


def find_parquet(folder: Path) -> dict[str, list[Path]]:
    """Return the parquet files of each split, in the folder or in the hub's subfolders."""
    for place in (folder, *(folder / name for name in (*INNER_FOLDERS, folder.resolve().name))):
        files = sorted(place.glob("*.parquet"))
        splits = {
            split: [file for file in files if re.match(rf"{split}(?![a-z])", file.name)]
            for split in ("train", *TEST_SPLITS)
        }
        found = {split: part for split, part in splits.items() if part}
        if "train" in found:
            return found
    return {}


def read_parquet(folder: Path, files: Mapping[str, list[Path]], note: Note) -> Parts:
    """Return the images of a folder's parquet files, which `find_parquet` returned.

    Raises:
        DataError: a file is damaged, or has no images or no labels.
    """
    tables = {split: partial(_read_files, paths) for split, paths in files.items()}
    return parts_from_tables(folder.resolve().name, tables, str(folder), note)


def parts_from_tables(
    name: str, tables: Mapping[str, Callable[[], Any]], origin: str, note: Note
) -> Parts:
    """Return the training and the test images of pyarrow tables, given one function per split.

    Test images are those of the first of `TEST_SPLITS` that exists and has labels; on the hub, some
    splits have the label -1 for every image.

    Raises:
        DataError: there is no such split, or a table has no images or no labels.
    """
    if "train" not in tables:
        raise DataError(f"{origin} has no split 'train'; it has {', '.join(tables) or 'none'}.")
    table = tables["train"]()
    train = _make_stream(table, f"{origin}, train")
    for split in TEST_SPLITS:
        if split in tables:
            test = _make_stream(tables[split](), f"{origin}, {split}")
            if bool((test.labels >= 0).any()):
                unused = [s for s in TEST_SPLITS if s != split and s in tables]
                note_unused(unused, origin, note)
                return Parts(name, train, test, _name_classes(table, train.labels, origin))
    raise DataError(
        f"{origin} has no labelled split to test on ({', '.join(TEST_SPLITS)}); it has "
        f"{', '.join(tables)}."
    )


def _read_files(files: list[Path]) -> Any:
    """Return the table of some files, in memory or, if they are large, memory-mapped."""
    if sum(file.stat().st_size for file in files) > IN_MEMORY:
        return _map_files(files)
    import pyarrow
    import pyarrow.parquet

    tables = []
    for file in files:
        with _refuse_damaged(str(file)):
            schema = pyarrow.parquet.read_schema(file)
            columns = [_find_image_column(schema, file), _find_label_column(schema, file)]
            tables.append(pyarrow.parquet.read_table(file, columns=columns))
    with _refuse_damaged(" and ".join(map(str, files))):
        return pyarrow.concat_tables(tables)


@contextlib.contextmanager
def _refuse_damaged(origin: str) -> Iterator[None]:
    """Raise `DataError` for what pyarrow raises, which is almost anything for damaged files."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{origin} cannot be read as parquet ({reason}). Download it again."
        ) from error


def _map_files(files: list[Path]) -> Any:
    """Return a memory-mapped table in the cache of ``datasets``, which all ranks share."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{files[0].parent} is too large to be read into memory, and the library 'datasets', "
            "which maps it from disk, is not installed: pip install datasets"
        ) from error
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(files[0])
        columns = [_find_image_column(schema, files[0]), _find_label_column(schema, files[0])]
        paths = [glob.escape(str(file)) for file in files]
        with hide_bars():
            return datasets.Dataset.from_parquet(paths, columns=columns).data.table
    except (pyarrow.ArrowException, OSError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise DataError(
            f"{files[0]} and {len(files) - 1} more cannot be read as parquet ({reason}). Download "
            "them again, or free disk space if the cache of 'datasets' has none left."
        ) from error


@contextlib.contextmanager
def hide_bars() -> Iterator[None]:
    """Hide the progress bars of ``datasets`` unless standard error is a terminal."""
    import datasets

    if sys.stderr.isatty() or datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def _make_stream(table: Any, origin: str) -> ImageStream:
    with _refuse_damaged(origin):
        images = table.column(_find_image_column(table.schema, origin))
        labels = table.column(_find_label_column(table.schema, origin))
        if labels.null_count:
            raise DataError(f"{origin}: {labels.null_count} images have no label.")
        numbers = torch.tensor(labels.to_pylist(), dtype=torch.int64)
    return ImageStream(TableReader(images, origin), tuple(range(len(images))), numbers)


def _find_image_column(schema: Any, origin: Any) -> str:
    """Return the column of {bytes, path}, or of bytes if it is named img or image."""
    import pyarrow.types as kinds

    def is_binary(kind: Any) -> bool:
        return kinds.is_binary(kind) or kinds.is_large_binary(kind)

    for field in schema:
        at = field.type.get_field_index("bytes") if kinds.is_struct(field.type) else -1
        if at >= 0 and is_binary(field.type.field(at).type):
            return field.name
    for field in schema:
        if is_binary(field.type) and field.name in IMAGE_COLUMNS:
            return field.name
    raise DataError(
        f"{origin}: no column of images ({{bytes, path}}, or bytes named img or image) among "
        f"{', '.join(schema.names)}."
    )


def _find_label_column(schema: Any, origin: Any) -> str:
    """Return the column named label, fine_label or labels, or the only one of integers."""
    import pyarrow.types as kinds

    whole = [field.name for field in schema if kinds.is_integer(field.type)]
    for name in LABEL_COLUMNS:
        if name in whole:
            return name
    if len(whole) == 1:
        return whole[0]
    raise DataError(
        f"{origin}: no column of labels (integers named label, fine_label or labels) among "
        f"{', '.join(schema.names)}."
    )


def _name_classes(table: Any, labels: Tensor, origin: str) -> tuple[str, ...]:
    """Return the class names of the hub's metadata, or else the numbers of the labels."""
    try:
        metadata = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata.get("info", {}).get("features", {})
        names = features.get(_find_label_column(table.schema, origin), {}).get("names")
        if names is not None and not all(isinstance(name, str) for name in names):
            raise TypeError(f"names of classes are {names!r:.50}")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{origin}: the metadata of the hub cannot be read ({error}). Download it again."
        ) from error
    return tuple(names) if names else name_by_number(labels, origin)
