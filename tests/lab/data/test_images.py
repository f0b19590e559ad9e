"""The fingerprint of a data set."""

import torch

from data_cases import make_images, write_folder, write_npz
from trainact.lab.data import ImageTensor, load_data
from trainact.lab.recipes.recipe import DataFields

TRAIN, TEST = make_images(200, size=8), make_images(60, seed=1, size=8)


def test_the_fingerprint_depends_on_images_labels_and_order(tmp_path):
    def take(images=TRAIN.images, labels=TRAIN.labels, test=TEST, **fields):
        file = write_npz(tmp_path / "set.npz", ImageTensor(images, labels), test)
        return load_data(DataFields(name=str(file), **fields)).fingerprint

    other_pixel = TRAIN.images.clone()
    other_pixel[100, 1, 2, 3] ^= 1
    swap = torch.arange(200)
    swap[[0, 10]] = swap[[10, 0]]
    for stored in ("memory", "stream"):
        found = [
            take(storage=stored),
            take(other_pixel, storage=stored),
            take(labels=TRAIN.labels.flip(0), storage=stored),
            take(TRAIN.images[swap], storage=stored),
            take(test=TEST.select(torch.arange(59)), storage=stored),
            take(storage=stored, train_images=100),
            take(storage=stored, held_out=60, evaluate_on="held-out"),
        ]
        assert len(set(found)) == len(found)
        assert take(storage=stored) == found[0]
        assert all(len(value) == 64 for value in found)


def test_the_fingerprint_of_files_is_of_names_sizes_and_labels(tmp_path):
    def take(root):
        return load_data(DataFields(name=str(root), storage="stream")).fingerprint

    counts = {"train/a": 2, "train/b": 2, "test/a": 1}
    first = write_folder(tmp_path / "first", counts)
    before = take(first)
    assert take(write_folder(tmp_path / "elsewhere", counts)) == before
    (first / "train/a/000.png").rename(first / "train/a/009.png")
    renamed = take(first)
    with (first / "train/a/009.png").open("ab") as file:
        file.write(b"more")
    assert len({before, renamed, take(first)}) == 3
