"""Commands on a disk that is full or read-only; run with mounts of its own by ``unshare``.

Each line of standard input is a JSON list: how the disk is disturbed, the bytes that are free, and
the words of a command with OUT for the folder on the disk. Each line of standard output tells how
the disturbed command and the same command afterwards ended.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

SIZE = 64 * 2**20


def mount(folder: Path, *options: str) -> None:
    subprocess.run(["mount", *options, str(folder)], check=True)


def run(words: list[str], out: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", *(word.replace("OUT", str(out)) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stderr


def disturb(kind: str, free: int, words: list[str], disk: Path) -> dict[str, object]:
    """Give a command on a disturbed disk, and again on a good one."""
    disk.mkdir(exist_ok=True)
    mount(disk, "-t", "tmpfs", "-o", f"size={SIZE}", "none")
    try:
        if kind == "full":
            (disk / "ballast").write_bytes(bytes(SIZE - free))
        else:
            mount(disk, "-o", "remount,ro")
        code, said = run(words, disk)
        if kind == "full":
            (disk / "ballast").unlink()
        else:
            mount(disk, "-o", "remount,rw")
        again, then_said = run(words, disk)
        shutil.copytree(disk, disk.with_name(f"{disk.name}-kept"))
        return {"code": code, "said": said, "again": again, "then_said": then_said}
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def main(folder: Path) -> None:
    for number, line in enumerate(sys.stdin):
        kind, free, words = json.loads(line)
        print(json.dumps(disturb(kind, free, words, folder / f"disk-{number}")), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
