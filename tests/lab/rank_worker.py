"""What each rank of test_ranks.py does: the runs of a folder of recipes."""

import sys
from pathlib import Path

from trainact.lab.ranks import leave_ranks
from trainact.lab.recipes.recipe import read_recipe
from trainact.lab.training.train import train


def main(folder: Path) -> None:
    for file in sorted(folder.glob("*.toml")):
        train(read_recipe(file), folder / "several", lambda event: None)
    leave_ranks()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
