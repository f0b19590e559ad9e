"""The errors of trainact; each message says what happened, what is accepted and what to do."""

__all__ = [
    "FirstLayerNotFoundError",
    "TorchVersionError",
    "TrActError",
    "TrActTypeError",
    "TrActValueError",
    "UnsupportedLayerError",
    "first_line",
]


class TrActError(Exception):
    """Base class of all errors that trainact raises."""


class TrActValueError(TrActError, ValueError):
    """An argument has the right type but an unusable value."""


class TrActTypeError(TrActError, TypeError):
    """An argument has the wrong type."""


class UnsupportedLayerError(TrActTypeError):
    """TrAct cannot train this layer or weight."""


class FirstLayerNotFoundError(TrActValueError):
    """No first layer was found in the model."""


class TorchVersionError(TrActError, ImportError):
    """The installed torch is too old."""


def first_line(error: Exception) -> str:
    """Return the beginning of another library's message, for a message of ours.

    >>> first_line(ValueError("bad shape")), first_line(KeyError())
    ('bad shape', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
