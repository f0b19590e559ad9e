"""Streamed images are cropped and augmented reproducibly, with and without workers."""

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from data_cases import write_folder
from slow_cases import mark_slow
from trainact.errors import TrActValueError
from trainact.lab.data import load_data
from trainact.lab.data.decoding import open_picture, picture_to_tensor
from trainact.lab.data.images import DataError, ImageStream
from trainact.lab.randomness import capture_states, mix
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.torchvision_import import import_torchvision
from trainact.lab.training.stream import StreamDataset, make_loader

SIZE = 24
SIZES = ((40, 30), (30, 44), (24, 24), (20, 60), (13, 17), (64, 48), (33, 32), (25, 90))
CROPS = ("resized", "pad", "none")


def make_picture(item: int) -> Image.Image:
    """A picture of smooth colours, another for each item; item 99 is a damaged one."""
    if item == 99:
        raise DataError("photo-99.jpg cannot be read as an image. Delete it.")
    width, height = SIZES[item % len(SIZES)]
    x, y = torch.linspace(0, 200, width), torch.linspace(0, 200, height)
    planes = [x.expand(height, width), y[:, None].expand(height, width)]
    planes.append(torch.full((height, width), 20.0 * (item % 10)))
    pixels = torch.stack(planes, 2).byte() + 10
    return Image.frombytes("RGB", (width, height), bytes(pixels.flatten().tolist()))


def read_file(path: Path) -> Image.Image:
    return open_picture(path.read_bytes(), path.name)


def make_stream(count: int = 16) -> ImageStream:
    return ImageStream(make_picture, tuple(range(count)), torch.arange(count) % 5)


def make_dataset(train: bool = True, seed: int = 0, **fields: Any) -> StreamDataset:
    return StreamDataset(make_stream(), DataFields(**fields), SIZE, train, seed)


def make_batches(epoch: int = 0, count: int = 16, size: int = 5) -> list[list[Any]]:
    places = [(epoch, i, (7 * i + 3) % count) for i in range(count)]
    return [places[i : i + size] for i in range(0, count, size)]


def read_all(dataset: StreamDataset, workers: int = 0, epoch: int = 0) -> tuple[Tensor, Tensor]:
    batches = list(make_loader(dataset, make_batches(epoch), workers))
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("crop", CROPS)
def test_batches_hold_bytes_of_one_size_and_the_labels_of_their_images(
    crop: str, train: bool
) -> None:
    images, labels = read_all(make_dataset(train, crop=crop))
    assert images.shape == (16, 3, SIZE, SIZE)
    assert images.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert labels.tolist() == [(7 * i + 3) % 16 % 5 for i in range(16)]


@pytest.mark.parametrize("crop", CROPS)
def test_workers_do_not_change_the_images(crop: str) -> None:
    dataset = make_dataset(crop=crop, rotation=10.0, policy="autoaugment-cifar10")
    alone, helped = read_all(dataset, workers=0), read_all(dataset, workers=2)
    assert torch.equal(alone[0], helped[0])
    assert torch.equal(alone[1], helped[1])


@pytest.mark.parametrize("crop", mark_slow(CROPS, fast=0))
def test_a_new_process_reads_the_same_images(tmp_path: Path, crop: str) -> None:
    root = write_folder(tmp_path / "set", {"train/a": 3, "train/b": 3, "test/a": 1})
    images = load_data(DataFields(name=str(root), storage="stream")).train
    dataset = StreamDataset(images, DataFields(crop=crop, flip=True), SIZE, True, 1)
    file = tmp_path / "dataset.pickle"
    file.write_bytes(pickle.dumps(dataset))
    read = (
        f"import pickle; d = pickle.load(open({str(file)!r}, 'rb')); print(d[0, 1, 2][0].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dataset[0, 1, 2][0].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_global_generators_are_not_used(workers: int) -> None:
    dataset = make_dataset(crop="resized", rotation=10.0)
    before, python = capture_states(), random.getstate()
    read_all(dataset, workers)
    after = capture_states()
    assert random.getstate() == python
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_the_global_seed_has_no_effect() -> None:
    dataset = make_dataset(crop="resized")
    torch.manual_seed(1)
    first = read_all(dataset)[0]
    torch.manual_seed(2)
    assert torch.equal(read_all(dataset)[0], first)


@pytest.mark.parametrize("crop", ["resized", "pad"])
def test_seed_epoch_and_position_each_change_the_images(crop: str) -> None:
    one = make_dataset(crop=crop)
    place = (1, 2, 3)
    usual = one[place][0]
    assert torch.equal(one[place][0], usual)
    others = [make_dataset(crop=crop, seed=1)[place][0], one[2, 2, 3][0], one[1, 3, 3][0]]
    assert all(not torch.equal(other, usual) for other in others)


def test_the_rest_of_an_epoch_is_the_same_as_in_the_whole_epoch() -> None:
    dataset, batches = make_dataset(crop="resized"), make_batches()
    whole = list(make_loader(dataset, batches, 0))
    rest = list(make_loader(dataset, batches[2:], 0))
    assert len(make_loader(dataset, batches[2:], 0)) == len(rest) == 2
    for (images, labels), (again, same) in zip(whole[2:], rest, strict=True):
        assert torch.equal(images, again)
        assert torch.equal(labels, same)


def test_a_loader_can_be_read_twice_and_abandoned() -> None:
    loader = make_loader(make_dataset(), make_batches(), 2)
    first = next(iter(loader))[0]
    assert torch.equal(next(iter(loader))[0], first)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_reported_with_its_message(workers: int) -> None:
    images = ImageStream(make_picture, (0, 1, 2, 99, 4, 5), torch.zeros(6).long())
    dataset = StreamDataset(images, DataFields(), SIZE, True, 0)
    loader = make_loader(dataset, [[(0, i, i), (0, i + 1, i + 1)] for i in (0, 2, 4)], workers)
    read = []
    with pytest.raises(DataError) as caught:
        read.extend(loader)
    assert len(read) == 1
    assert str(caught.value) == "photo-99.jpg cannot be read as an image. Delete it."
    with pytest.raises(DataError, match=r"^photo-99.jpg cannot"):
        dataset[0, 3, 3]


def test_test_images_do_not_depend_on_their_position() -> None:
    dataset = make_dataset(train=False, crop="resized")
    assert torch.equal(dataset[0, 0, 5][0], dataset[3, 9, 5][0])


@pytest.mark.parametrize(("crop", "larger"), [("resized", 27), ("pad", SIZE), ("none", SIZE)])
def test_test_images_are_the_centres_of_the_scaled_images(crop: str, larger: int) -> None:
    import_torchvision()
    from torchvision.transforms import CenterCrop, Compose, Resize

    twin = Compose([Resize(larger), CenterCrop(SIZE)])
    dataset = make_dataset(train=False, crop=crop)
    for i in range(16):
        assert torch.equal(dataset[0, i, i][0], picture_to_tensor(twin(make_picture(i))))


def test_resized_crops_are_torchvisions() -> None:
    import_torchvision()
    from torchvision.transforms import RandomResizedCrop

    dataset = make_dataset(crop="resized", flip=False, seed=4)
    twin = RandomResizedCrop(SIZE)
    for i in range(16):
        torch.manual_seed(mix(4, "part", 1, i, i))
        assert torch.equal(dataset[1, i, i][0], picture_to_tensor(twin(make_picture(i))))


def test_padded_crops_are_anywhere_in_the_padded_image() -> None:
    """The third picture has the right size already, so offsets can be read from its ramps."""
    dataset = make_dataset(crop="pad", crop_padding=2, flip=False)
    padded = torch.nn.functional.pad(picture_to_tensor(make_picture(2)), (2, 2, 2, 2))
    parts = padded.unfold(1, SIZE, 1).unfold(2, SIZE, 1)
    found = set()
    for position in range(300):
        image = dataset[0, position, 2][0]
        equal = (parts == image[:, None, None]).all(-1).all(-1).all(0)
        assert equal.sum() == 1
        found.add(tuple(equal.nonzero()[0].tolist()))
    assert len(found) == 25


def test_half_of_the_training_images_are_mirrored() -> None:
    dataset = make_dataset(crop="none")
    plain = make_dataset(crop="none", flip=False)[0, 0, 0][0]
    mirrored = 0
    for position in range(400):
        image = dataset[0, position, 0][0]
        is_mirrored = torch.equal(image, plain.flip(2))
        assert is_mirrored or torch.equal(image, plain)
        mirrored += is_mirrored
    assert 150 < mirrored < 250


def test_photographs_are_read_by_workers_as_by_this_process(samples: Path) -> None:
    paths = tuple(sorted((samples / "imagenette" / "train").rglob("*.jp*g"))[:12])
    assert len(paths) == 12
    images = ImageStream(read_file, paths, torch.arange(12))
    dataset = StreamDataset(images, DataFields(crop="resized", rotation=5.0), 96, True, 0)
    alone, helped = (
        torch.cat([pixels for pixels, _ in make_loader(dataset, make_batches(0, 12, 4), workers)])
        for workers in (0, 2)
    )
    assert alone.shape == (12, 3, 96, 96)
    assert torch.equal(alone, helped)
    assert alone.float().std() > 20


def test_a_stream_without_a_size_is_refused() -> None:
    with pytest.raises(TrActValueError, match=r"need one size; got data.image_size=0"):
        StreamDataset(make_stream(), DataFields(), 0, True, 0)


def test_the_part_of_a_test_image_and_the_fill_of_a_crop_are_the_recipes(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 2, "val/a": 2}, size=40)
    for file in root.rglob("*.png"):
        from PIL import Image

        picture = Image.new("RGB", (40, 40), (255, 255, 255))
        picture.paste((90, 90, 90), (4, 4, 36, 36))
        picture.save(file)
    images = load_data(DataFields(name=str(root), storage="stream")).test

    def read(train, **fields):
        return StreamDataset(images, DataFields(flip=False, **fields), 20, train, 0)[0, 0, 0][0]

    whole, part = read(False, test_crop=1.0), read(False, test_crop=0.5)
    assert int(whole[0, 0, 0]) == 255
    assert part.unique().tolist() == [90]
    assert torch.equal(read(False, crop="resized"), read(False, test_crop=0.875))
    corners = [
        StreamDataset(images, DataFields(flip=False, crop_fill=fill), 20, True, 0)[0, at, 0][
            0
        ].min()
        for fill in ("black", "reflect")
        for at in range(6)
    ]
    assert min(map(int, corners[:6])) == 0
    assert min(map(int, corners[6:])) >= 85
    assert not torch.equal(
        read(False, test_crop=1.0), read(False, test_crop=1.0, interpolation="bicubic")
    )
