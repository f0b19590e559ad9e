"""Recipes as TOML files."""

import tomllib
from pathlib import Path

import tomli_w

from trainact.errors import TrActValueError
from trainact.lab.files import write_atomically
from trainact.lab.recipes.recipe import Recipe, make_recipe, recipe_to_dict

__all__ = ["read_recipe", "read_toml", "write_recipe"]


def read_toml(path: Path) -> dict[str, object]:
    """Return the tables of a TOML file.

    Raises:
        TrActValueError: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TrActValueError(f"{path} cannot be read as TOML: {error}.") from error


def read_recipe(path: Path) -> Recipe:
    """Return the recipe of a file.

    Raises:
        TrActValueError: it cannot be read, or a key or value is not a recipe's.
    """
    return make_recipe(read_toml(path), str(path))


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write every field, also those that have their default: defaults may change, a run may not."""
    write_atomically(path, tomli_w.dumps(recipe_to_dict(recipe)).encode())
