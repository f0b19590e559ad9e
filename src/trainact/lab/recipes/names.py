"""What runs are called, and lists of numbers on the command line."""

from trainact.errors import TrActValueError
from trainact.lab.recipes.recipe import Recipe

__all__ = ["name_network", "name_run", "parse_numbers", "parse_whole_numbers"]


def name_run(recipe: Recipe) -> str:
    """Return what a reader calls a run.

    >>> name_run(Recipe())
    'tract, 5 epochs, seed 0'
    """
    arm = recipe.run.arm or ("tract" if recipe.tract.enabled else "plain")
    epochs = recipe.schedule.epochs
    return f"{arm}, {epochs} epoch{'s' if epochs > 1 else ''}, seed {recipe.run.seed}"


def name_network(model: str) -> str:
    """Return what a network is called in a table and its folder, from its ``model.name``.

    >>> name_network("lab:vgg16"), name_network("timm:vit_tiny.in1k")
    ('vgg16', 'timm-vit_tiny.in1k')
    """
    return model.removeprefix("lab:").replace(":", "-").replace("/", "-")


def parse_whole_numbers(text: str, option: str) -> list[int]:
    """Return whole numbers from ``0-4`` or ``5,10,20``, each once and in order.

    >>> parse_whole_numbers("0-2,7", "--seeds")
    [0, 1, 2, 7]

    Raises:
        TrActValueError: the text says something else.
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise TrActValueError(
                f"{option} takes whole numbers such as 0-4 or 5,10,20; got {text!r}."
            )
        numbers += range(int(first), int(last if dash else first) + 1)
    if not numbers or len(set(numbers)) < len(numbers):
        raise TrActValueError(f"{option} {text!r} names no number, or one of them twice.")
    return numbers


def parse_numbers(text: str, option: str) -> list[float]:
    """Return positive numbers from ``0.05,0.1``.

    Raises:
        TrActValueError: the text says something else.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise TrActValueError(
            f"{option} takes positive numbers, separated by commas; got {text!r}."
        )
    return numbers
