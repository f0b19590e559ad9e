"""Checks of data sets: real samples, which are parts, and damaged ones."""

import pytest

from data_cases import write_folder
from trainact.errors import TrActValueError
from trainact.lab.data import DataError, checks, load_data, published
from trainact.lab.data.checks import check_data_set
from trainact.lab.data.published import ImageCounts
from trainact.lab.recipes.recipe import DataFields
from voc_cases import make_voc


@pytest.fixture
def small(monkeypatch):
    """Let the published Flowers-102 have 6 training images, 4 test images and 2 classes."""
    counts = ImageCounts(train=6, test=4, classes=2, size=8)
    monkeypatch.setitem(published.PROVIDED, "flowers102", counts)


def write_flowers(folder, train=3):
    counts = {"train/001": train, "train/002": 3, "test/001": 2, "test/002": 2}
    return write_folder(folder, counts)


def check(name, place, images=100):
    return check_data_set(name, str(place), images, pytest.fail)


def test_a_data_set_as_published_is_right(small, tmp_path):
    found = check("flowers102", write_flowers(tmp_path / "set"))
    assert found.is_right
    assert found.difference == ""
    assert (found.train.images, found.test.images, found.classes) == (6, 4, 2)
    assert (found.train.per_class, found.train.decoded, found.train.damaged) == ((3, 3), 6, ())


def test_missing_images_are_counted(small, tmp_path):
    found = check("flowers102", write_flowers(tmp_path / "set", train=2))
    assert not found.is_right
    assert found.difference == "5 training images (published: 6)"
    assert found.train.per_class == (2, 3)


def test_a_damaged_image_is_found_if_it_is_decoded(small, tmp_path):
    root = write_flowers(tmp_path / "set")
    last = sorted((root / "test" / "002").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:40])
    found = check("flowers102", root, images=2)  # the first and the last
    assert found.difference == ""
    assert not found.is_right
    assert len(found.test.damaged) == 1
    assert last.name in found.test.damaged[0]
    assert check("flowers102", root, images=None).test.decoded == 4
    assert check("flowers102", root, images=0).is_right


@pytest.mark.parametrize(
    "name", ["imagenette", "flowers102", "stanford_cars", "cifar10", "cifar100"]
)
def test_the_samples_are_parts_of_the_published_sets(real_samples, name):
    found = check(name, real_samples / name, images=5)
    assert not found.is_right
    assert f"training images (published: {found.published.train:,})" in found.difference
    assert found.classes == found.published.classes
    assert found.train.decoded in (5, found.train.images)
    assert not found.train.damaged + found.test.damaged


def test_the_sample_of_a_detector_has_images_of_their_annotated_size(real_samples):
    found = check("voc2007", real_samples / "voc2007", images=None)
    assert (found.train.images, found.test.images, found.train.decoded) == (100, 60, 100)
    assert not found.train.damaged + found.test.damaged
    assert found.train.per_class[0] >= 1


def test_a_picture_of_another_size_than_annotated_is_damaged(tmp_path):
    root = make_voc(tmp_path)
    annotation = root / "Annotations" / "000000.xml"
    annotation.write_text(annotation.read_text().replace("<width>60", "<width>61"))
    found = check("voc2007", tmp_path)
    assert [text.split("; ")[1] for text in found.train.damaged] == ["its annotation says 61 x 48."]


def test_a_layout_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(DataError, match="contains no folders"):
        check("imagenet", tmp_path)
    with pytest.raises(DataError, match="contains no VOCdevkit"):
        check("voc2007", tmp_path)
    with pytest.raises(TrActValueError, match="are not published"):
        check("photos", tmp_path)


def test_every_message_about_the_data_is_passed_on(small, tmp_path):
    root = write_flowers(tmp_path / "set")
    write_folder(root, {"val/001": 1, "val/002": 1})
    notes = []
    assert checks.check_data_set("flowers102", str(root), 0, notes.append).is_right
    assert notes == [f"{root}: val is not used; to train on these images too, move them to train."]


def test_loading_other_numbers_than_published_is_one_message(small, tmp_path):
    """Of the whole set, also if a run uses a part of it."""
    root, notes = write_flowers(tmp_path / "set", train=2), []
    fields = DataFields("flowers102", str(root), train_images=4)
    data = load_data(fields, note=notes.append)
    assert data.difference == "5 training images (published: 6)"
    assert notes == [f"flowers102 has {data.difference} here; the records of its runs say so."]
    notes.clear()
    whole = DataFields("flowers102", str(write_flowers(tmp_path / "whole")), train_images=4)
    assert load_data(whole, note=notes.append).difference == ""
    assert load_data(DataFields(str(root)), note=notes.append).difference == ""  # a folder
    assert notes == []


def test_a_detectors_other_numbers_are_one_message_too(tmp_path):
    make_voc(tmp_path)
    notes = []
    data = load_data(DataFields("voc2007", str(tmp_path)), note=notes.append)
    assert data.difference.startswith("6 training images (published: 5,011), 3 test images")
    assert len(notes) == 1
