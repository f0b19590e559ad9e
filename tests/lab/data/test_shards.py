"""WebDataset shards are read like any stream; damage is named."""

import io
import pickle
import tarfile

import pytest
import torch
from PIL import Image

from data_cases import encode
from trainact.lab.data import DataError, ImageStream, load_data
from trainact.lab.recipes.recipe import DataFields


def make_jpeg(number, mode="RGB"):
    colour = {"RGB": (number * 20 % 256, 50, 90), "L": 128, "CMYK": (0, 255, 255, 0)}[mode]
    return encode(Image.new(mode, (12, 10), colour), "jpeg", quality=95)


def write_shard(file, samples):
    """Write {key: (jpeg, label)} as a WebDataset shard."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for key, (picture, label) in samples.items():
            for kind, content in (("jpg", picture), ("json", b"{}"), ("cls", label)):
                if content is not None:
                    member = tarfile.TarInfo(f"{key}.{kind}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return file


def make_samples(start, count, classes=3):
    return {
        f"n0{i:04}": (make_jpeg(i), str(i % classes).encode()) for i in range(start, start + count)
    }


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "my shards é"
    for shard in range(3):
        write_shard(folder / f"set-train-{shard:02}.tar", make_samples(shard * 5, 5))
    write_shard(folder / "set-val-00.tar", make_samples(20, 6))
    return folder


def load(name, **fields):
    return load_data(DataFields(name=str(name), **fields))


def test_a_folder_of_shards_is_a_stream_of_its_images(root):
    data = load(root, storage="stream")
    assert isinstance(data.train, ImageStream)
    assert (len(data.train), len(data.test)) == (15, 6)
    assert data.classes == ("0", "1", "2")
    assert data.train.labels.tolist() == [i % 3 for i in range(15)]
    for at in (14, 0, 7):  # in any order
        red, green, _ = data.train.read(data.train.items[at]).getpixel((5, 5))
        assert abs(red - at * 20 % 256) < 6
        assert abs(green - 50) < 6
    again = pickle.loads(pickle.dumps(data.train.read))
    assert again(data.train.items[3]).tobytes() == data.train.read(data.train.items[3]).tobytes()
    assert data.train.read.describe(data.train.items[6])[0] == "set-train-01.tar/n00006.jpg"


@pytest.mark.parametrize(
    "pattern",
    [
        "set-{train-00,train-01,train-02,val-00}.tar",
        "set-train-{00..02}.tar::{root}/set-val-00.tar",
        "set-*.tar",
    ],
)
def test_shards_by_name_are_those_of_the_folder(root, pattern):
    name = f"{root}/{pattern}".replace("{root}", str(root))
    assert load(name, storage="stream").fingerprint == load(root, storage="stream").fingerprint


def test_parts_may_be_folders(tmp_path):
    write_shard(tmp_path / "train" / "0000.tar", make_samples(0, 6))
    write_shard(tmp_path / "validation" / "0000.tar", make_samples(6, 3))
    data = load(tmp_path, image_size=8)
    assert data.train.images.shape == (6, 3, 8, 8)
    assert len(data.test) == 3


def test_shards_serve_a_named_set_and_its_number_of_classes_is_checked(root):
    data = load("imagenet", folder=str(root), storage="stream", classes=3)
    assert data.name == "imagenet"
    with pytest.raises(DataError, match=r"3 classes to train on.*the recipe is for 1000"):
        load("imagenet", folder=str(root), classes=1000)


def test_grey_and_cmyk_images_become_rgb(root):
    samples = {"grey": (make_jpeg(0, "L"), b"0"), "ink": (make_jpeg(0, "CMYK"), b"1\n")}
    write_shard(root / "set-train-03.tar", samples)
    data = load(root, storage="stream")
    grey, ink = (data.train.read(item) for item in data.train.items[-2:])
    assert grey.getpixel((3, 3)) == (128, 128, 128)
    assert max(abs(a - b) for a, b in zip(ink.getpixel((3, 3)), (255, 0, 0), strict=True)) < 5


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("label", r"n09999.jpg has no label n09999.cls"),
        ("word", r"n09999.cls holds b'dog', which is not a class number"),
        ("number", r"n09999.cls holds b'99999999999999999999', which is not a class number"),
        ("short", r"set-train-03\.tar is truncated: its end is missing"),
        ("gzip", r"cannot be read as an uncompressed tar file"),
        ("range", r"the label of test image 6 is 7; the 3 classes are numbered 0 to 2"),
        ("train", r"has no train shards among 1 files\. The names of shards contain the split"),
        ("absent", r"there is no shard .*set-train-07\.tar"),
    ],
)
def test_damaged_shards_are_named(root, damage, message):
    file, name = root / "set-train-03.tar", root
    if damage == "label":
        write_shard(file, {"n09999": (make_jpeg(0), None)})
    elif damage == "word":
        write_shard(file, {"n09999": (make_jpeg(0), b"dog")})
    elif damage == "number":
        write_shard(file, {"n09999": (make_jpeg(0), b"9" * 20)})
    elif damage == "short":
        content = write_shard(file, make_samples(0, 9)).read_bytes()
        file.write_bytes(content[: len(content) // 2 + 100])
    elif damage == "gzip":
        file.write_bytes(b"\x1f\x8b" + bytes(600))
    elif damage == "range":
        write_shard(root / "set-val-01.tar", {"n09999": (make_jpeg(0), b"7")})
    elif damage == "train":
        for shard in root.glob("*train*"):
            shard.unlink()
    else:
        name = f"{root}/set-{{train-07,val-00}}.tar"
    with pytest.raises(DataError, match=message):
        load(name, storage="stream")


def test_a_truncated_jpeg_in_a_shard_is_named_when_it_is_read(root):
    noise = torch.randint(0, 256, (64, 64, 3), dtype=torch.uint8).numpy()
    cut = encode(Image.fromarray(noise), "jpeg")[:900]
    write_shard(root / "set-train-03.tar", {"n09999": (cut, b"0")})
    data = load(root, storage="stream")
    with pytest.raises(
        DataError, match=r"set-train-03\.tar, n09999\.jpg cannot be read as an image"
    ):
        data.train.read(data.train.items[-1])
