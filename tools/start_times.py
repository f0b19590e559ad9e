"""Time ``make demo`` and then ``make test`` in a clean clone: ``python -m tools.start_times``.

Both include the installation. The times go to ``results/bench/start.json``, from which ``make
pages`` fills CONTRIBUTING.md.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from trainact.lab.environment import describe_environment
from trainact.lab.files import write_atomically
from trainact.lab.text import count, format_duration

__all__ = ["FILE", "main", "measure_start", "write_start_times"]

ROOT = Path(__file__).parents[1]
FILE = Path("bench") / "start.json"
"""The record, below ``results/``."""
TARGETS = ("demo", "test")


def measure_start(root: Path) -> dict[str, Any]:
    """Return the seconds of each target in a clone of a repository, one after the other."""
    variables = {key: value for key, value in os.environ.items() if key != "TRAINACT_SAMPLES"}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(root), folder], check=True)
        for target in TARGETS:
            started = time.monotonic()
            subprocess.run(["make", target], cwd=folder, env=variables, check=True)
            seconds[target] = round(time.monotonic() - started, 1)
    kept = ("date", "commit", "clean", "python", "system", "processor", "cores")
    environment = {key: value for key, value in describe_environment().items() if key in kept}
    load = round(os.getloadavg()[2], 1)
    return {"environment": environment, "load_of_15_minutes": load, "seconds": seconds}


def write_start_times(results: Path) -> dict[str, str]:
    """Return the text of the marked place, from the record."""
    if not (results / FILE).exists():
        commands = "`python -m tools.start_times`, then `make pages`"
        return {"start-times": f"Not timed in a clean clone yet: run {commands}."}
    record = json.loads((results / FILE).read_text())
    environment = record["environment"]
    demo, test = (format_duration(record["seconds"][target]) for target in TARGETS)
    return {
        "start-times": (
            f"From a clean clone `make demo` took {demo}, and `make test` after it {test}; both "
            f"with the installation, on {count(environment['cores'], 'core')} "
            f"({environment['processor']}), Python {environment['python']}, "
            f"{environment['date'][:10]}."
        )
    }


def main() -> None:
    """Measure and write the record."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    text = json.dumps(measure_start(ROOT), indent=1) + "\n"
    write_atomically(ROOT / "results" / FILE, text.encode())


if __name__ == "__main__":
    main()
