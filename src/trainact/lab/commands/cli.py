"""The command line: ``trainact COMMAND``.

Each command is a module with ``add_arguments(parser)`` and ``run(arguments)``, imported only when
it is called, so that one command does not need the packages of another.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import trainact
from trainact.errors import TrActError
from trainact.lab.commands.settings import gather_settings
from trainact.lab.ranks import is_first_rank

__all__ = ["main", "start"]


class Command(NamedTuple):
    """Which extra a command needs, and what it does in one line."""

    extra: str
    summary: str


COMMANDS = {
    "compare": Command("lab", "train plain and with TrAct, and compare"),
    "run": Command("lab", "do the runs of a recipe"),
    "tune": Command("lab", "choose rates for plain training, held-out"),
    "collect": Command("lab", "gather the records of runs in one file for each experiment"),
    "report": Command("lab", "make pages from the records of runs"),
    "ls": Command("lab", "list all recipes, their runs and their cost"),
    "show": Command("lab", "show a recipe, its runs and what each costs"),
    "figure1": Command("lab", "measure and draw the paper's Figure 1"),
    "bench": Command("bench", "measure what TrAct costs on this machine"),
    "inspect": Command("lab", "show the first layers of a named model"),
}
"""Each is the module of its name in this package."""

GO_ON = ("compare", "run", "tune")
"""Commands that find what was done before."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0, or 2 with one line on standard error where it cannot be done."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _make_parser()
    if not arguments or arguments[0] not in COMMANDS:
        parser.parse_args(arguments or ["--help"])
        return 2
    name = arguments[0]
    command = COMMANDS[name]
    try:
        module = importlib.import_module(f"trainact.lab.commands.{name}")
        own = argparse.ArgumentParser(f"trainact {name}", description=command.summary)
        module.add_arguments(own)
        return int(module.run(own.parse_intermixed_args(gather_settings(arguments[1:]))) or 0)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("trainact"):
            raise
        return _fail(
            f"'trainact {name}' needs the package {error.name!r}, which comes with the extra "
            f"{command.extra!r}: pip install 'trainact[{command.extra}]'"
        )
    except TrActError as error:
        return _fail(str(error))
    except KeyboardInterrupt as error:
        more = "; the same command goes on where it stopped" if name in GO_ON else ""
        if is_first_rank():
            _fail(f"interrupted{more}.")
        return getattr(error, "code", 128 + signal.SIGINT)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def start() -> NoReturn:
    """Run one command as a program, which after Ctrl-C dies of it, so that a shell's loop ends."""
    code = main()
    if code == 128 + signal.SIGINT:
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(code)


def _make_parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    shown = "\n".join(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        "trainact",
        description="Train the first layer of a vision model through its pre-activations.",
        epilog=f"commands:\n{shown}\n\n'trainact COMMAND --help' tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"trainact {trainact.__version__}")
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    return parser


def _fail(message: str) -> int:
    print(f"trainact: {message}", file=sys.stderr)
    return 2
