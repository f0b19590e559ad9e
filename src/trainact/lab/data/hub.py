"""Data sets of the Hugging Face hub, loaded by the ``datasets`` library."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from trainact.lab.data import downloads
from trainact.lab.data.images import DataError, Note
from trainact.lab.data.parquet import hide_bars, parts_from_tables
from trainact.lab.data.selection import Parts

__all__ = ["load_from_hub"]


def load_from_hub(name: str, note: Note) -> Parts:
    """Return the images of the hub's data set ``owner/name``, downloaded or from the hub's cache.

    Raises:
        DataError: the hub does not answer or has no such images; the reason is one line.
    """
    return parts_from_tables(name, _load_tables(name), f"the hub's {name}", note)


def _load_tables(name: str) -> dict[str, Callable[[], Any]]:
    """Return a function for each split that returns its pyarrow table."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            "the library 'datasets' is not installed: pip install datasets pyarrow"
        ) from error
    unreachable = _find_problem(name)
    try:
        with hide_bars(), _stay_offline() if unreachable else contextlib.nullcontext():
            splits = datasets.load_dataset(name)
    except Exception as error:  # raised by many libraries
        reason = unreachable or downloads.describe_error(error)
        raise DataError(f"the hub's {name} cannot be loaded ({reason})") from error
    return {str(split): partial(getattr, part.data, "table") for split, part in splits.items()}


def _find_problem(name: str) -> str:
    """Return why the hub does not answer for this data set; an empty string if it does.

    One request with a short timeout, because ``datasets`` retries for half a minute.
    """
    import huggingface_hub

    hub = huggingface_hub.HfApi()
    return downloads.find_problem(lambda: hub.dataset_info(name, timeout=downloads.ANSWER_SECONDS))


@contextlib.contextmanager
def _stay_offline() -> Iterator[None]:
    """Let ``datasets`` read only its cache; the flags are restored afterwards."""
    import datasets.config
    import huggingface_hub.constants

    modules: list[Any] = [datasets.config, huggingface_hub.constants]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
