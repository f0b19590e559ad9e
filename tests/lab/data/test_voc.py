"""Reading PASCAL VOC2007: what the files say, what is wrong with them, and who gets which image."""

import re

import pytest
import torch

from trainact.lab.data import DataError, load_data
from trainact.lab.data.voc import CLASSES, parse_annotation
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.training.batches import Place
from trainact.lab.training.detection.scenes import DetectionBatches, SceneDataset, make_target
from voc_cases import make_voc, write_annotation, write_object


def load(folder, **fields):
    return load_data(DataFields(name="voc2007", folder=str(folder), **fields))


# annotations


def test_a_box_covers_both_of_its_ends():
    """VOC's pixels 11 to 20 are the ten from 10 to 20 here; a whole image is a whole image."""
    text = write_annotation(
        write_object("person", (11, 1, 20, 48)), write_object("cat", (1, 1, 60, 48), difficult=True)
    )
    width, height, objects = parse_annotation(text, "a.xml")
    assert (width, height) == (60, 48)
    assert objects.boxes.tolist() == [[10, 0, 20, 48], [0, 0, 60, 48]]
    assert [CLASSES[label] for label in objects.labels] == ["person", "cat"]
    assert objects.difficult.tolist() == [False, True]


def test_what_sticks_out_of_the_image_is_cut_off():
    text = write_annotation(write_object("dog", (-5, 40, 70, 60)))
    assert parse_annotation(text, "a.xml").objects.boxes.tolist() == [[0, 39, 60, 48]]


def test_an_image_may_show_nothing():
    objects = parse_annotation(write_annotation(), "a.xml").objects
    assert objects.boxes.shape == (0, 4)
    assert len(objects) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (write_annotation(write_object("dog", (20, 1, 10, 5))), "a dog has an empty box (xmin 20,"),
        (write_annotation(write_object("dog", (5, 9, 9, 8))), "empty box (xmin 5, ymin 9, xmax 9"),
        (write_annotation(write_object("dog", (61, 1, 70, 5))), "a dog is outside the image of"),
        (write_annotation(write_object("dgo", (1, 1, 2, 2))), "class 'dgo'; did you mean 'dog'"),
        (write_annotation(write_object("dog", ("a", 1, 2, 2))), "bndbox/xmin is 'a', not a number"),
        (write_annotation(write_object("dog", ("nan", 1, 2, 2))), "bndbox/xmin is 'nan', not a"),
        (write_annotation(width=0), "the image's size is 0 x 48"),
        ("<annotation></annotation>", "a.xml lacks size/width in its annotation"),
        (write_annotation()[:-3], "a.xml is not valid XML"),
        ("", "a.xml is not valid XML"),
        (
            '<!DOCTYPE a [<!ENTITY b "ha">]>' + write_annotation(),
            "a.xml has a document type; annotations of VOC have none",
        ),
    ],
)
def test_a_wrong_annotation_is_named(text, message):
    with pytest.raises(DataError, match=re.escape(message)):
        parse_annotation(text, "a.xml")


# the set


def test_the_sample_is_read_whole(real_samples):
    data = load(real_samples / "voc2007")
    assert (len(data.train), len(data.test)) == (100, 60)
    assert len(data.classes) == 20
    for image in (*data.train, *data.test):
        boxes = image.objects.boxes
        limit = torch.tensor([image.width, image.height, image.width, image.height])
        assert (boxes >= 0).all()
        assert (boxes <= limit).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
    first = next(image for image in data.train if image.name == "000014")
    assert first.objects.boxes[0].tolist() == [71, 162, 302, 228]
    assert first.objects.difficult.tolist() == [False] * 6 + [True]


def test_the_folder_may_be_the_set_or_one_that_it_lies_in(tmp_path):
    root = make_voc(tmp_path)
    prints = {load(place).fingerprint for place in (tmp_path, root.parent, root)}
    assert len(prints) == 1


def test_fewer_images_are_part_of_more_and_held_out_ones_never_trained_on(tmp_path):
    make_voc(tmp_path, train=12)

    def names(part):
        return {image.name for image in part}

    every = load(tmp_path)
    four, eight = (names(load(tmp_path, train_images=n).train) for n in (4, 8))
    assert four < eight < names(every.train)
    tuned = load(tmp_path, held_out=5, evaluate_on="held-out")
    assert len(names(tuned.test)) == 5
    assert names(tuned.test) | names(tuned.train) == names(every.train)
    assert not names(tuned.test) & names(tuned.train)
    assert load(tmp_path, test_images=2).fingerprint != every.fingerprint


def test_the_fingerprint_depends_on_boxes_and_images(tmp_path):
    root = make_voc(tmp_path)
    prints = [load(tmp_path).fingerprint]
    text = write_annotation(write_object("cat", (1, 1, 9, 9)))
    (root / "Annotations" / "000000.xml").write_text(text)
    prints.append(load(tmp_path).fingerprint)
    with (root / "JPEGImages" / "000001.jpg").open("ab") as file:
        file.write(b"more")
    prints.append(load(tmp_path).fingerprint)
    assert len(set(prints)) == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "JPEGImages/000002.jpg").unlink(), "000002.jpg is missing"),
        (lambda root: (root / "Annotations/000002.xml").unlink(), "000002.xml is missing"),
        (lambda root: (root / "Annotations/000002.xml").write_bytes(b"\xff\xfe"), "cannot be read"),
        (lambda root: (root / "ImageSets/Main/test.txt").unlink(), "are two archives"),
        (lambda root: (root / "ImageSets/Main/test.txt").write_text(" "), "names no image"),
        (lambda root: (root / "ImageSets/Main/test.txt").write_text("1\n1"), "an image twice"),
        (lambda root: (root / "ImageSets/Main/test.txt").write_text("000000"), "in both trainval and test"),
        (lambda root: (root / "ImageSets/Main/test.txt").write_text("../x"), "'../x', which is not"),
        (lambda root: (root / "ImageSets/Main").rename(root / "x"), "contains no VOCdevkit/VOC2007"),
    ],
)  # fmt: skip
def test_a_set_that_is_not_whole_says_what_is_wrong(tmp_path, spoil, message):
    spoil(make_voc(tmp_path))
    with pytest.raises(DataError, match=re.escape(message)):
        load(tmp_path)


def test_too_few_images_and_no_folder_are_named(tmp_path):
    make_voc(tmp_path)
    with pytest.raises(DataError, match=r"data.train_images is 7, but voc2007 has 6"):
        load(tmp_path, train_images=7)
    with pytest.raises(DataError, match="no image is left to train on"):
        load(tmp_path, held_out=6)
    with pytest.raises(DataError, match=r"data.folder is empty.*VOCtrainval"):
        load("")


def test_a_set_without_an_easy_object_is_refused(tmp_path):
    root = make_voc(tmp_path, test=1)
    text = write_annotation(write_object("cat", (1, 1, 9, 9), difficult=True))
    (root / "Annotations" / "000006.xml").write_text(text)
    with pytest.raises(DataError, match="no test image has an object that is not difficult"):
        load(tmp_path)


# images


def test_a_damaged_image_and_one_of_another_size_are_named(tmp_path):
    root = make_voc(tmp_path)
    scenes = SceneDataset(load(tmp_path).train, train=False, flip=False, seed=0)
    file = root / "JPEGImages" / "000000.jpg"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"000000\.jpg cannot be read as an image"):
        scenes[0, 0, 0]
    text = write_annotation(write_object("cat", (1, 1, 9, 9)), width=61)
    (root / "Annotations" / "000001.xml").write_text(text)
    scenes = SceneDataset(load(tmp_path).train, train=False, flip=False, seed=0)
    with pytest.raises(DataError, match=r"has 60 x 48 pixels; its annotation says 61 x 48"):
        scenes[0, 0, 1]


def test_half_of_the_images_are_mirrored_with_their_boxes(tmp_path):
    make_voc(tmp_path)
    images = load(tmp_path).train
    plain = SceneDataset(images, train=True, flip=False, seed=0)
    mirrored = SceneDataset(images, train=True, flip=True, seed=0)
    flips = 0
    for epoch in range(40):
        before, objects = plain[epoch, 3, 1]
        after, moved = mirrored[epoch, 3, 1]
        if torch.equal(before, after):
            assert torch.equal(objects.boxes, moved.boxes)
            continue
        flips += 1
        assert torch.equal(before.flip(2), after)
        left, top, right, bottom = objects.boxes[0].tolist()
        assert moved.boxes[0].tolist() == [60 - right, top, 60 - left, bottom]
    assert 10 < flips < 30
    tested = SceneDataset(images, train=False, flip=True, seed=0)
    assert all(torch.equal(tested[epoch, 3, 1][0], before) for epoch in range(8))


def test_difficult_objects_are_not_trained_on():
    text = write_annotation(
        write_object("dog", (1, 1, 9, 9), difficult=True), write_object("bus", (2, 2, 8, 8))
    )
    target = make_target(parse_annotation(text, "a.xml").objects, torch.device("cpu"))
    assert target["boxes"].tolist() == [[1, 1, 8, 8]]
    assert target["labels"].tolist() == [CLASSES.index("bus") + 1]


def test_batches_depend_on_neither_ranks_nor_where_a_run_begins(tmp_path):
    make_voc(tmp_path, train=7)
    fields = DataFields(name="voc2007", folder=str(tmp_path), batch_size=3)
    images, device = load(tmp_path).train, torch.device("cpu")

    def read(rank=0, ranks=1, start=0):
        batches = DetectionBatches(images, fields, 5, Place(rank, ranks, device))
        assert (batches.steps, batches.smallest) == (3, 1)
        return list(batches.read(2, start))

    whole = read()
    assert [count for _, count in whole] == [3, 3, 1]
    for step, (share, count) in enumerate(whole):
        parts = [read(rank, 2)[step][0] for rank in (0, 1)]
        joined = parts[0].images + parts[1].images
        assert len(joined) == count
        assert all(map(torch.equal, joined, share.images))
    for (later, _), (share, _) in zip(read(start=1), whole[1:], strict=True):
        assert all(map(torch.equal, later.images, share.images))
        for a, b in zip(later.targets, share.targets, strict=True):
            assert torch.equal(a["boxes"], b["boxes"])
