"""The photographs of scikit-image as a data set."""

import subprocess
import sys

import pytest
import torch

from trainact.errors import TrActValueError
from trainact.lab.data import DataError, ImageTensor, load_data, photos
from trainact.lab.recipes.recipe import DataFields

pytest.importorskip("skimage")


@pytest.fixture(scope="module")
def whole():
    return load_data(DataFields())


def test_photos_are_balanced_crops_of_eight_photographs(whole):
    assert whole.train.images.shape == (6000, 3, 32, 32)
    assert whole.test.images.shape == (2000, 3, 32, 32)
    assert whole.train.images.dtype == torch.uint8
    assert whole.classes == photos.CLASSES
    assert "retina" in whole.classes
    assert whole.train.labels.bincount().tolist() == [750] * 8
    assert whole.test.labels.bincount().tolist() == [250] * 8


def test_no_crop_is_almost_of_one_grey(whole):
    for part in (whole.train, whole.test):
        assert part.images.float().mean(1).std(dim=(1, 2), correction=0).min() >= 2


def test_no_crop_is_drawn_twice(whole):
    both = torch.cat([whole.train.images, whole.test.images]).flatten(1)
    assert len(both.unique(dim=0)) == len(both)


def test_parts_share_no_pixel(monkeypatch):
    """Photographs in which each pixel's value is its own place: parts have no value in common."""
    numbers = torch.arange(420 * 300).reshape(420, 300)
    photo = torch.stack([numbers // 65536, numbers // 256 % 256, numbers % 256]).to(torch.uint8)
    monkeypatch.setattr(photos, "_read_photo", lambda name: photo)
    crops = photos.draw_crops(4000, 2000, 1000)
    weights = torch.tensor([65536, 256, 1]).view(3, 1, 1)
    for label in range(8):
        train, test, held_out = (
            set((part.images[part.labels == label].long() * weights).sum(1).flatten().tolist())
            for part in crops.values()
        )
        assert len(train) > len(test) > len(held_out) > 1024
        assert not train & test
        assert not train & held_out
        assert not test & held_out


def test_fewer_crops_are_the_first_of_more(whole):
    fewer = load_data(DataFields(train_images=100, test_images=50))
    more = load_data(DataFields(train_images=7001, test_images=2500))
    assert len(more.train) == 7001
    assert torch.equal(fewer.train.images, whole.train.images[:100])
    assert torch.equal(whole.train.images, more.train.images[:6000])
    assert torch.equal(fewer.test.images, more.test.images[:50])
    assert torch.equal(fewer.test.labels, more.test.labels[:50])


def test_held_out_crops_come_out_of_training_whatever_their_number(whole):
    data = load_data(DataFields(held_out=1000))
    assert len(data.train) == 5000
    assert torch.equal(data.test.images, whole.test.images)
    tuned = load_data(DataFields(held_out=1000, train_images=8000, evaluate_on="held-out"))
    assert isinstance(tuned.test, ImageTensor)
    assert tuned.test.labels.bincount().tolist() == [125] * 8
    both = torch.cat([tuned.train.images, tuned.test.images, data.test.images]).flatten(1)
    assert len(both.unique(dim=0)) == 8000 + 1000 + 2000


@pytest.mark.slow
def test_two_processes_see_the_same_photos(whole):
    code = (
        "from trainact.lab.data import load_data; from trainact.lab.recipes.recipe import DataFields; "
        "print(load_data(DataFields()).fingerprint)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == whole.fingerprint, answer.stderr


def test_a_photograph_has_so_many_crops_and_no_more():
    with pytest.raises(DataError, match=r"has \d+ test crops, but 1000000 test images"):
        load_data(DataFields(test_images=1_000_000))


def test_holding_out_everything_is_refused():
    with pytest.raises(DataError, match=r"data\.held_out is 6000, but photos has 6000"):
        load_data(DataFields(held_out=6000))


def test_without_scikit_image_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(photos.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install scikit-image"):
        load_data(DataFields())


def test_the_message_for_an_unknown_name_has_similar_names():
    with pytest.raises(TrActValueError, match="'photo'; did you mean 'photos'"):
        load_data(DataFields(name="photo"))


def test_importing_the_data_sets_imports_no_reader():
    code = "import sys, trainact.lab.data; print(*{m.split('.')[0] for m in sys.modules})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = set(answer.stdout.split())
    assert "trainact" in loaded
    assert not loaded & {"skimage", "datasets", "pyarrow", "torchvision", "PIL", "safetensors"}
