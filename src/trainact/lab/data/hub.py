"""Data sets of the Hugging Face hub, through the ``datasets`` library."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from trainact.lab.data.images import DataError, Note
from trainact.lab.data.parquet import parts_from_tables
from trainact.lab.data.selection import Parts

__all__ = ["load_from_hub"]

SECONDS = 10  # to wait for the hub's first answer


def load_from_hub(name: str, note: Note) -> Parts:
    """Return the images of the hub's data set ``owner/name``, fetched or from the hub's own cache.

    Raises:
        DataError: the hub does not answer, or has no such images; the reason stands in one line.
    """
    return parts_from_tables(name, _load_tables(name), f"the hub's {name}", note)


def _load_tables(name: str) -> dict[str, Callable[[], Any]]:
    """Return for each split the function that gives its pyarrow table."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            "the library 'datasets' is not installed: pip install datasets pyarrow"
        ) from error
    unreachable = _ask_hub(name)
    try:
        with _stay_offline() if unreachable else contextlib.nullcontext():
            splits = datasets.load_dataset(name)
    except Exception as error:  # of many libraries: the network's, the hub's, the formats'
        reason = unreachable or f"{type(error).__name__}: {_shorten(error)}"
        raise DataError(f"the hub's {name} cannot be loaded ({reason})") from error
    return {str(split): partial(getattr, part.data, "table") for split, part in splits.items()}


def _ask_hub(name: str) -> str:
    """Return why the hub does not answer for this data set; an empty text if it does.

    One question with a short wait, because ``datasets`` tries again for half a minute.
    """
    import huggingface_hub

    try:
        huggingface_hub.HfApi().dataset_info(name, timeout=SECONDS)
    except Exception as error:
        return f"{type(error).__name__}: {_shorten(error)}"
    return ""


@contextlib.contextmanager
def _stay_offline() -> Iterator[None]:
    """Let ``datasets`` look into its cache only."""
    import datasets.config
    import huggingface_hub.constants

    places: list[Any] = [datasets.config, huggingface_hub.constants]
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            place.HF_HUB_OFFLINE = True
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
