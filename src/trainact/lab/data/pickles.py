"""Pickled numpy arrays, read without running what else a pickle may hold."""

import pickle
from pathlib import Path
from typing import Any

from trainact.lab.data.images import DataError

__all__ = ["read_pickle"]

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


def read_pickle(file: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle of Python 2 or 3 that holds nothing but plain data.

    Raises:
        DataError: it holds anything besides numbers, text, lists, dictionaries and numpy arrays, or
            is damaged.
    """
    try:
        with file.open("rb") as opened:
            content = _ArrayUnpickler(opened, encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{file} is not read: {error}") from error
    except Exception as error:  # unpickling damaged bytes raises almost anything
        raise DataError(
            f"{file} is no pickle that can be read ({type(error).__name__}: {error}). It may be "
            "cut short; obtain it again."
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{file} holds {type(content).__name__}, not the dictionary of a batch.")
    return {k.decode() if isinstance(k, bytes) else str(k): v for k, v in content.items()}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import numpy as np

        if (module, name) not in _ALLOWED:
            raise DataError(
                f"it asks for {module}.{name}, and a pickle may run anything; only numpy arrays "
                "are accepted. Obtain the original file."
            )
        if name == "_reconstruct":
            return np.empty(0).__reduce__()[0]  # wherever this numpy keeps it
        return getattr(np, name)
