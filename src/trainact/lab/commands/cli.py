"""The command line: ``trainact COMMAND``.

Each command is a module with ``add_arguments(parser)`` and ``run(arguments)``. It is imported only
when it is called, so that one command does not need the packages of another. It imports torch and
other large packages inside its functions, after it has checked its arguments: help and messages
about usage come at once.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import trainact
from trainact.errors import TrActError, TrActValueError
from trainact.lab.ranks import is_first_rank, leave_ranks

__all__ = ["main", "start"]


COMMANDS = {
    "compare": "train with and without TrAct, and compare",
    "run": "do the runs of a recipe",
    "tune": "tune a recipe for plain training on held-out images",
    "data": "check a data set before training on it",
    "collect": "collect the records of runs in one file per experiment",
    "report": "write pages from the records of runs",
    "ls": "list the recipes with their runs and cost",
    "show": "show a recipe with its runs and their cost",
    "figure1": "measure and draw the paper's Figure 1",
    "bench": "measure the cost of TrAct on this machine",
    "inspect": "show the first layers of a model",
}
"""Commands and their summaries; each is the module of its name in this package."""
RESUMABLE = ("compare", "run", "tune")
"""Commands that continue where they were interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code, or 2 after one line on standard error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _make_parser()
    if not arguments or arguments[0] not in COMMANDS:
        parser.parse_args(arguments or ["--help"])
        return 2
    name = arguments[0]
    try:
        module = importlib.import_module(f"trainact.lab.commands.{name}")
        description = COMMANDS[name][0].upper() + COMMANDS[name][1:] + "."
        own = argparse.ArgumentParser(f"trainact {name}", description=description)
        module.add_arguments(own)
        return int(module.run(_parse(own, arguments[1:])) or 0)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("trainact"):
            raise
        extra = "all" if error.name == "transformers" else "bench" if name == "bench" else "lab"
        return _fail(
            f"'trainact {name}' needs the package {error.name!r}, which comes with the extra "
            f"{extra!r}: pip install 'trainact[{extra}]'"
        )
    except TrActError as error:
        return _fail(str(error))
    except KeyboardInterrupt as error:
        hint = "; the same command continues from here" if name in RESUMABLE else ""
        if is_first_rank():
            _fail(f"interrupted{hint}.")
        return getattr(error, "code", 128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of the output, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def start() -> NoReturn:
    """Run one command as a program; Ctrl-C ends it by SIGINT, so that a shell's loop ends too."""
    code = main()
    if code == 0:
        leave_ranks()
    if code == 128 + signal.SIGINT:
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(code)


def _parse(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Return the arguments; in a command with ``rest``, that is what follows after ``--``."""
    rest: list[str] | None = None
    if parser.get_default("rest") is not None and "--" in words:
        words, rest = words[: words.index("--")], words[words.index("--") + 1 :]
    parsed = parser.parse_intermixed_args(_join_fields(words))
    if rest is not None:
        parsed.rest = rest
    return parsed


def _join_fields(arguments: Sequence[str]) -> list[str]:
    """Return a command line with ``--table.field value`` written as ``table.field=value``.

    >>> _join_fields(["--data.folder", "here", "--seeds", "0-4", "--run.ema=0.9"])
    ['data.folder=here', '--seeds', '0-4', 'run.ema=0.9']
    """
    joined: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("--") and "." in name:
            if not equals and (following := next(words, None)) is not None:
                equals, value = "=", following
            if not equals:
                raise TrActValueError(f"{name} needs a value.")
            word = f"{name[2:]}={value}"
        joined.append(word)
    return joined


def _make_parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = argparse.ArgumentParser(
        "trainact",
        description="Train the first layer of a vision model on its pre-activations (TrAct).",
        epilog=f"commands:\n{lines}\n\n'trainact COMMAND --help' shows the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"trainact {trainact.__version__}")
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND", help="see below")
    return parser


def _fail(message: str) -> int:
    print(f"trainact: {message}", file=sys.stderr)
    return 2
