"""One family of errors: every message says what came, what is accepted and what to do."""

__all__ = [
    "FirstLayerNotFoundError",
    "TrActError",
    "TrActTypeError",
    "TrActValueError",
    "UnsupportedLayerError",
]


class TrActError(Exception):
    """Base of everything that trainact raises on purpose."""


class TrActValueError(TrActError, ValueError):
    """An argument of the right kind with a value that cannot be used."""


class TrActTypeError(TrActError, TypeError):
    """An argument of the wrong kind."""


class UnsupportedLayerError(TrActTypeError):
    """A layer (or weight) that TrAct cannot train."""


class FirstLayerNotFoundError(TrActValueError):
    """No layer was found that meets the image before any other weight does."""
