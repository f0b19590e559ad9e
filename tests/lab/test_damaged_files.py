"""Damaged files of every kind are read or refused: no other error, no code run, nothing lost."""

import collections
import io
import json
import pickle
import resource
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.torch
import torch

from damage import damage_bytes
from damaged_kinds import KINDS, MARKER, Kind, rename_checkpoint
from robustness_record import THOROUGH, write_figures
from small_models import make_tiny
from trainact.errors import TrActError
from trainact.lab.records.record import seal

CASES = 10_000 if THOROUGH else 300
MEMORY = 3 * 2**30
"""What a reader may allocate: a file of some kilobytes that asks for more is damaged."""


def share_cases() -> dict[str, int]:
    """Return the number of cases of each kind; together they are `CASES`."""
    total = sum(kind.share for kind in KINDS.values())
    counts = {name: int(CASES * kind.share / total) for name, kind in KINDS.items()}
    counts["recipes"] += CASES - sum(counts.values())
    return counts


@pytest.fixture(scope="module")
def counts():
    """What became of the cases of each kind; written to the record of ``make test-thorough``."""
    found: dict[str, collections.Counter[str]] = {}
    yield found
    write_figures("files", [{"kind": name, **number} for name, number in found.items()])


@pytest.fixture
def little_memory():
    """Let a reader that asks for too much memory fail, instead of the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("little_memory", "one_thread")
@pytest.mark.parametrize("name", list(KINDS))
def test_a_damaged_file_is_read_or_refused(name, tmp_path, monkeypatch, counts):
    kind, whole, faults = KINDS[name], tmp_path / "whole", []
    whole.mkdir()
    kind.write(whole)
    monkeypatch.setenv(MARKER, str(tmp_path / "ran"))
    shutil.copytree(whole, tmp_path / "first")
    kind.read(tmp_path / "first")  # undamaged files are read
    found = counts[name] = collections.Counter(cases=0, read=0, refused=0, faults=0)
    for number in range(share_cases()[name]):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        damage_one(kind, folder, Random(f"{name} {number}"))
        before = list_contents(folder, kind)
        found["cases"] += 1
        try:
            kind.read(folder)
            found["read"] += 1
        except TrActError as error:
            found["refused" if str(error) else "faults"] += 1
        except Exception:
            found["faults"] += 1
            faults.append(f"{name} {number}: {traceback.format_exc()}")
        lost = before - list_contents(folder, kind)
        if lost or (tmp_path / "ran").exists():
            found["faults"] += 1
            faults.append(f"{name} {number}: {'a file was lost' if lost else 'code was run'}")
        shutil.rmtree(folder)
    print(dict(found))
    assert not faults, f"{len(faults)} of {found['cases']}\n" + "\n".join(faults[:8])


def damage_one(kind: Kind, folder: Path, draw: Random) -> None:
    """Damage one file: its bytes, a field in it, or give it another file's content."""
    files = sorted(path for path in folder.rglob(kind.targets) if path.is_file())
    path = draw.choice(files)
    content, way = path.read_bytes(), draw.random()
    if way < 0.04:
        path.write_bytes(draw.choice(files).read_bytes())
    elif way < 0.45:
        path.write_bytes(damage_bytes(content, draw, kind.text))
    else:
        path.write_bytes(kind.damage(content, draw))
    if kind.name == "checkpoints" and draw.random() < 0.5:
        rename_checkpoint(path)


def list_contents(folder: Path, kind: Kind) -> set[bytes]:
    """Return the contents of all files but those that are written anew."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.read_bytes()
        for path in files
        if not any(path.match(pattern) for pattern in kind.rewritten)
    }


def put(old: str, new: str) -> Callable[[bytes], bytes]:
    """Return a change of a text."""

    def change(content: bytes) -> bytes:
        assert old.encode() in content
        return content.replace(old.encode(), new.encode(), 1)

    return change


def reseal(**fields: Any) -> Callable[[bytes], bytes]:
    """Return a change of a record's fields, after which its seal fits."""

    def change(content: bytes) -> bytes:
        record = json.loads(content) | fields
        return json.dumps({**record, "seal": seal(record)}).encode()

    return change


def save_arrays(**arrays: Any) -> Callable[[bytes], bytes]:
    """Return a change of some arrays of an archive."""

    def change(content: bytes) -> bytes:
        buffer = io.BytesIO()
        np.savez(buffer, **{**np.load(io.BytesIO(content)), **arrays})
        return buffer.getvalue()

    return change


def save_table(change_table: Callable[[pyarrow.Table], pyarrow.Table]) -> Callable[[bytes], bytes]:
    """Return a change of a table."""

    def change(content: bytes) -> bytes:
        buffer = io.BytesIO()
        table = change_table(pyarrow.parquet.read_table(io.BytesIO(content)))
        pyarrow.parquet.write_table(table, buffer)
        return buffer.getvalue()

    return change


def save_tensors(**changes: Any) -> Callable[[bytes], bytes]:
    """Return a change of some weights."""

    def change(content: bytes) -> bytes:
        buffer = io.BytesIO()
        torch.save(make_tiny(5).state_dict() | changes, buffer)
        return buffer.getvalue()

    return change


def pickle_batch(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda content: pickle.dumps(pickle.loads(content, encoding="latin1") | changes)


def set_labels(labels: list[int], kind: Any = None) -> Callable[[bytes], bytes]:
    def change(table: pyarrow.Table) -> pyarrow.Table:
        values = pyarrow.array(labels * len(table), kind or pyarrow.int64())
        return table.set_column(1, "label", values).replace_schema_metadata(None)

    return save_table(change)


def set_cells(cell: Any) -> Callable[[bytes], bytes]:
    return save_table(lambda table: table.set_column(0, "img", pyarrow.array([cell] * len(table))))


def set_metadata(text: str) -> Callable[[bytes], bytes]:
    return save_table(lambda table: table.replace_schema_metadata({"huggingface": text}))


def damage_header(content: bytes) -> bytes:
    """Damage the header of the second member of an archive."""
    at = content.index(b"000.cls")
    return content[:at] + b"?" + content[at + 1 :]


def compress(method: int) -> Callable[[bytes], bytes]:
    """Return a change of the method by which the first entry of an archive is compressed."""

    def change(content: bytes) -> bytes:
        at = content.index(b"PK\1\2") + 10
        return content[:at] + bytes([method]) + content[at + 1 :]

    return change


def to_cached(dtype: torch.dtype) -> Callable[[bytes], bytes]:
    return lambda _: safetensors.torch.save({"train_images": torch.zeros(2, dtype=dtype)})


DEEP = "[" * 20_000
REFUSED = [
    ("recipes", "run.toml", put('arm = "mine"', 'arm = "../../mine"'), "run.arm names a folder"),
    ("recipes", "run.toml", put('arm = "mine"', 'arm = "a\\u0000b"'), "run.arm names a folder"),
    ("recipes", "run.toml", put("batch_size = 32", f"batch_size = {DEEP}"), "cannot be read as TOML"),
    ("recipes", "run.toml", put("batch_size = 32", "batch_size = " + "9" * 5000), "cannot be read as"),
    ("recipes", "run.toml", put("lr = 0.08", f"lr = 1{'0' * 400}"), "at most 64 bits"),
    ("recipes", "experiment.toml", put("0.1, 0.2, 0.3", "nan, 0.2, 0.3"), "data.mean must be finite"),
    ("recipes", "experiment.toml", put("width = 8", "width = 2026-01-01"), "model.arguments takes"),
    ("recipes", "experiment.toml", put('"0-2"', '"0-99999999999"'), "at most 10000 numbers"),
    ("recipes", "experiment.toml", put('"0-2"', f'"{"9" * 5000}"'), "takes whole numbers"),
    ("recipes", "experiment.toml", put('5 = ["plain", "mine"]', "5 = 3"), "arms_at, 5 takes a list"),
    ("recipes", "experiment.toml", put('5 = {"optimizer.lr" = 0.3}', "5 = 3"), "at, 5 takes a table"),
    ("recipes", "experiment.toml", put("[0.1, 0.2]}", "3}"), "grid, optimizer.lr takes a list"),
    ("recipes", "experiment.toml", put('{"tract.enabled" = false, "optimizer.first_layer_lr" = 3}', "3"), "extra_arms, mine takes"),
    ("recipes", "experiment.toml", put("lams = [0.1", "lams = [0.0"), "lams takes positive numbers"),
    ("records", "record.json", lambda _: DEEP.encode(), "recursion"),
    ("records", "record.json", reseal(recipe_id=None), "not a whole record: recipe_id is None"),
    ("records", "record.json", reseal(epochs=[3]), "not a whole record: a table"),
    ("records", "record.json", reseal(budget=True), "not a whole record: budget is True"),
    ("collected records", "*.jsonl", lambda c: c + DEEP.encode(), "recursion"),
    ("tuning", "tuning.json", put("3.0", '"3"'), "was not written by trainact tune"),
    ("tuning", "tuning.json", lambda _: DEEP.encode(), "was not written by trainact tune"),
    ("benchmark", "bench.json", put('"layer": [', '"layer": [3, '), "is not a record of"),
    ("benchmark", "bench.json", put('"environment"', '"other"'), "is not a record of"),
    ("weights", "b.pth", save_tensors(**{"0.weight": torch.zeros(8, 3, 4, 4).to_sparse()}), "dense"),
    ("weights", "b.pth", save_tensors(**{"0.weight": torch.zeros(2, dtype=torch.cfloat)}), "dense"),
    ("`.npz`", "set.npz", compress(99), "cannot be read"),
    ("`.npz`", "set.npz", save_arrays(train_images=np.zeros((6, 8, 0), "u1")), "no pixels"),
    ("`.npz`", "set.npz", save_arrays(train_labels=np.full(6, 2**60)), "has the label 11529215"),
    ("parquet", "t*", set_labels([2**40]), "has the label 1099511627776"),
    ("parquet", "train-0*", set_labels([2**63], pyarrow.uint64()), "cannot be read"),
    ("parquet", "train-0*", set_labels([1], pyarrow.int32()), "cannot be read as"),
    ("parquet", "t*", set_cells({"bytes": "text", "path": "x"}), "no column of images"),
    ("parquet", "t*", set_metadata("{"), "the metadata of the hub cannot be read"),
    ("parquet", "t*", set_metadata("[]"), "the metadata of the hub cannot be read"),
    ("parquet", "train*", save_table(lambda t: t.slice(0, 0).replace_schema_metadata()), "0 class"),
    ("shards", "*-train-0.tar", damage_header, "is damaged after byte"),
    ("VOC", "000000.xml", put("<width>60", "<width>1e300"), "the image's size is 1"),
    ("VOC", "trainval.txt", lambda c: b"1" * 300 + b"\n" + c, "is missing"),
    ("CIFAR batches", "data_batch_1", pickle_batch(labels=3), "is not a batch of images"),
    ("CIFAR batches", "data_batch_1", pickle_batch(labels=["a"]), "is not a batch of images"),
    ("CIFAR batches", "data_batch_1", pickle_batch(labels=[2**70]), "is not a batch of images"),
    ("npm package", "train_lables.json", lambda _: DEEP.encode(), "as a list of labels"),
    ("cache", "*.safetensors", to_cached(torch.bfloat16), "is damaged"),
]  # fmt: skip
"""Kind, file, how it is changed, and the message: what was another error, or was not noticed."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "file", "change", "message"), REFUSED)
def test_what_was_not_refused_once(name, file, change, message, tmp_path):
    kind = KINDS[name]
    kind.write(tmp_path)
    for path in sorted(tmp_path.rglob(file)):
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(TrActError, match=message):
        kind.read(tmp_path)
