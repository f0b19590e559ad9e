"""The parts of an HTML page: the macros of the template ``page.html``, which escapes all text."""

import functools
from importlib.resources import files
from typing import Any

__all__ = ["read_file", "render_part"]


def render_part(name: str, *values: Any) -> str:
    """Return a part as HTML; a part that is a value of another one is not escaped again."""
    return getattr(_make_parts(), name)(*values)


def read_file(name: str) -> str:
    """Return a file of this package."""
    return files("trainact.lab.report").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _make_parts() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(read_file("page.html")).module
