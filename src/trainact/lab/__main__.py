"""``python -m trainact.lab``: the command line, for torchrun and ``accelerate launch``."""

from trainact.lab.commands.cli import start

start()
