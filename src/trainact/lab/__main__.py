"""``python -m trainact.lab``: the command line, for torchrun and ``accelerate launch``."""

from trainact.lab.cli import start

start()
