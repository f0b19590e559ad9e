"""Kill commands at random moments, and give them again until they are done."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from lab_helpers import start, without_times
from trainact.lab.records.results import find_runs

EPOCHS = 40
EXPERIMENT = f"""
[experiment]
title = "to be killed"
seeds = "0"
arms = ["plain", "tract"]
budgets = [{EPOCHS}]
[data]
name = "photos"
train_images = 320
test_images = 80
batch_size = 32
[model]
name = "small_models:make_noisy"
[run]
device = "cpu"
checkpoint_seconds = 1e-6
"""
SECONDS = 600
"""After which a command is taken for one that hangs."""
ORPHAN_SECONDS = 30
"""After which a process that lost its parent is killed too."""
RUN = ("trainact.lab", "run", "RECIPE", "--out", "OUT")
COMMANDS = {
    "trainact compare": (
        "trainact.lab", "compare", "--recipe", "RECIPE", "--out", "OUT", "--epochs", str(EPOCHS),
        "--seeds", "0",
    ),
    "trainact run --jobs 2": (*RUN, "--jobs", "2"),
    "trainact run --on ray": (*RUN, "--on", "ray", "--jobs", "2"),
    "torchrun --nproc-per-node 2": (
        "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", *RUN,
    ),
}  # fmt: skip
"""Modules and arguments, by the names of the commands."""
OWN = (b"trainact", b"ray::do_task")
"""Parts of the command lines of processes that do runs."""


@dataclass
class Campaign:
    """Kills one command until it was killed so often, each time resumed to the end."""

    name: str
    folder: Path
    draw: Random
    kills: int = 0
    runs: int = 0
    equal: int = 0

    def command(self, out: Path) -> list[str]:
        """Return the command that writes to a folder."""
        recipe = self.folder / "recipe.toml"
        recipe.write_text(EXPERIMENT)
        places = {"RECIPE": str(recipe), "OUT": str(out)}
        return [places.get(word, word) for word in COMMANDS[self.name]]

    def kill(self, times: int) -> dict[str, Any]:
        """Kill the command so often; return the figures."""
        undisturbed = self.folder / "undisturbed"
        assert not self.do(undisturbed, kill=False)
        whole, rounds = read_results(undisturbed), 0
        assert whole
        while self.kills < times:
            out, rounds = self.folder / f"round-{rounds}", rounds + 1
            while self.do(out, kill=self.kills < times):
                pass
            results = read_results(out)
            assert results.keys() == whole.keys()
            assert not list(out.rglob("checkpoint-*"))
            assert not list(out.rglob("failure.json"))
            self.runs += len(results)
            self.equal += sum(results[run] == whole[run] for run in whole)
        return {"command": self.name, "kills": self.kills, "runs": self.runs, "equal": self.equal}

    def do(self, out: Path, kill: bool) -> bool:
        """Give the command once; return whether a process was killed before it ended.

        The command, one of its processes, or all of them are killed. A command that ends by itself
        must end well.
        """
        said: list[str] = []
        with start(*self.command(out), start_new_session=True) as process:
            reader = threading.Thread(target=lambda: said.extend(process.stderr or []))
            reader.start()
            victims = self.choose(process, said) if kill else []
            everyone = find_processes(process.pid) if victims else []
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            process.wait(SECONDS)
            wait_for(everyone)
            reader.join()
        if victims:
            self.kills += 1
            assert "Traceback" not in "".join(said) or "torchrun" in self.name, "".join(said)[
                -3000:
            ]
            return True
        assert process.returncode == 0, "".join(said)[-3000:]
        return False

    def choose(self, process: "subprocess.Popen[str]", said: list[str]) -> list[int]:
        """Wait for a random moment; return the processes to kill, none if the command has ended."""
        epochs, delay = self.draw.randint(1, EPOCHS * 3 // 4), self.draw.uniform(0, 0.1)
        if self.draw.random() < 0.1:
            epochs, delay = 0, self.draw.uniform(0, 5)  # while it starts
        kind = self.draw.choice(("command", "one", "all"))
        while process.poll() is None and sum(": epoch " in line for line in said) < epochs:
            time.sleep(0.01)
        time.sleep(delay)
        found = find_processes(process.pid)
        if process.poll() is not None:
            return []
        if kind == "all":
            return [process.pid, *found]
        workers = [pid for pid in found if any(word in read_command(pid) for word in OWN)]
        return [self.draw.choice(workers)] if kind == "one" and workers else [process.pid]


def read_results(out: Path) -> dict[tuple[str, int], tuple[dict[str, Any], bytes]]:
    """Return what must be the same of each run: its record without times, and its weights."""
    results = {}
    for run in find_runs([out]):
        assert run.record is not None, run.describe_interruption()
        weights = (run.path.parent / "weights.safetensors").read_bytes()
        results[run.record["arm"], run.record["seed"]] = without_times(dict(run.record)), weights
    return results


def find_processes(parent: int) -> list[int]:
    """Return all processes below one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, left = [], [parent]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def read_command(pid: int) -> bytes:
    """Return a process's command line; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def wait_for(processes: list[int]) -> None:
    """Wait until processes that have lost their parent have ended; kill those that do not.

    Ranks whose torchrun was killed while they looked for each other wait for a long time.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    for pid in processes:
        while read_command(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        if read_command(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
